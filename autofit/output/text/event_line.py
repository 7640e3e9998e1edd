"""Events of a run as lines of a log; the live view uses the same texts."""

from __future__ import annotations

from collections.abc import Mapping

from autofit.output.text.launch_line import METRIC_UNITS, unmeasured_text
from autofit.output.text.trial_row import TrialRow, trial_row
from autofit.session.events import (
    BoundaryMoved,
    Event,
    Incumbent,
    LaunchEnded,
    Notice,
    PhaseStarted,
    RoundEnded,
)
from autofit.text_format import as_fast, duration, number, one_line
from autofit.trial.purpose import Phase
from autofit.trial.workload import Workload

# An interval is not shown if its ends differ by a larger factor. After three rounds on a noisy
# machine it may cover forty powers of ten.
_MAX_SHOWN_FACTOR = 100.0
_PHASE_TEXT: Mapping[Phase, str] = {
    "baseline": "what runs without tuning",
    "boundary": "how much fits in memory",
    "search": "lines show what differs from the best so far",
    "confirm": "rounds of fresh processes",
    "prove": "full context",
}


def event_line(event: Event, workload: Workload, numbers: Mapping[str, int]) -> str:
    """Return the event as one line with all that is known, empty for an event that is not logged.

    `numbers` has the first launch of each candidate, by the candidate's key.
    """
    if isinstance(event, PhaseStarted):
        limit = f" (at most {event.max_launches} launches)" if event.max_launches else ""
        return f"phase {event.phase}{limit}"
    if isinstance(event, LaunchEnded):
        reused = " (from an earlier run)" if event.is_reused else ""
        return _trial_line(trial_row(event.trial, workload)) + reused
    if isinstance(event, Incumbent):
        return incumbent_line(event)
    if isinstance(event, BoundaryMoved):
        return _boundary_line(event)
    if isinstance(event, RoundEnded):
        return round_line(event, numbers)
    if isinstance(event, Notice):
        return f"notice: {one_line(event.text)}"
    return ""


def brief_line(event: Event, numbers: Mapping[str, int]) -> str:
    """Return the event as a short line for people, empty for one that only the study needs.

    A launch has a line of its own, see `launch_line`.
    """
    if isinstance(event, PhaseStarted):
        limit = f" (at most {event.max_launches} launches)" if event.max_launches else ""
        return f"phase {event.phase}{limit}: {_PHASE_TEXT[event.phase]}"
    if isinstance(event, Incumbent):
        return incumbent_line(event)
    if isinstance(event, RoundEnded):
        return round_line(event, numbers)
    return f"notice: {one_line(event.text)}" if isinstance(event, Notice) else ""


def _trial_line(row: TrialRow) -> str:
    name = " ".join(part for part in (f"#{row.number}", row.phase, row.layout, row.params) if part)
    ended = f"{name}: {row.outcome} in {row.seconds}"
    if not row.is_completed:
        return f"{ended}: {row.evidence}" if row.evidence else ended
    speeds = zip(
        METRIC_UNITS.values(),
        (row.request_s, row.pp_per_s, row.tg_per_s, row.ttft_s),
        strict=True,
    )
    measured = ", ".join(f"{value} {unit}" for unit, value in speeds if value)
    free = f"; free {row.free_mib}" if row.free_mib else ""
    notes = "".join(f"; {note}" for note in row.notes)
    return f"{ended}: {measured or unmeasured_text(row)}{free}{notes}"


def _boundary_line(event: BoundaryMoved) -> str:
    where = one_line(f"{event.layout} {event.cache_type} ubatch={event.ubatch}")
    if event.fits is None:
        known = "" if event.fails is None else f"{event.fails} does not fit; "
        found = f"{known}nothing that fits found yet"
    elif event.fails is None:
        found = f"{event.fits} fits; limit not found yet"
    else:
        found = f"{event.fits} fits, {event.fails} does not"
    return f"layers with experts in RAM, {where}: {found}"


def incumbent_line(event: Incumbent) -> str:
    """Return a line with the best candidate so far, which no round has confirmed."""
    gain = f", {as_fast(event.gain, other='the baseline')}" if event.gain is not None else ""
    is_slower = event.gain is not None and event.gain < 1
    best = "best candidate so far" if is_slower else "best so far"
    value = f"{number(event.value)} {METRIC_UNITS[event.metric]}"
    return f"{best}: #{event.number}, {value}{gain}, unconfirmed"


def round_line(event: RoundEnded, numbers: Mapping[str, int]) -> str:
    """Return a line with the leader after a round, and its speed with an interval.

    The interval is valid after every round.
    """
    rounds = f"Round {event.number} of {event.max_rounds}"
    if event.leader is None:
        return f"{rounds}: no contender is left"
    first = numbers.get(event.leader)
    leader = one_line(event.leader) if first is None else f"#{first}"
    if event.ratio is None:
        is_baseline = first is not None and event.leader == event.baseline
        return f"{rounds}: {'own settings' if is_baseline else leader} ahead"
    # The sides of a comparison are no keys of candidates.
    is_side = first is None and event.baseline is not None
    other = one_line(event.baseline) if is_side else "the baseline"
    ratio, low, high = event.ratio.median, event.ratio.low, event.ratio.high
    if low is None or high is None:
        return f"{rounds}: {leader} is {as_fast(ratio, other=other)} (no interval yet)"
    if high > _MAX_SHOWN_FACTOR * low:
        return f"{rounds}: {leader} ahead, but far from decided"
    return f"{rounds}: {leader} is {as_fast(ratio, low, high, other=other)}"


def overrun_line(phase: str, budget_s: float, spent_s: float) -> str:
    """Return a line with the time over budget, and the reason why the phase continues."""
    reason = (
        "prove continues: without a proof there is no result"
        if phase == "prove"
        else "confirm continues until there are enough rounds to compare"
        if phase == "confirm"
        else f"{phase} ends after this launch"
    )
    over = duration(spent_s - budget_s)
    return f"budget of {duration(budget_s)} used up ({over} over); {reason}"
