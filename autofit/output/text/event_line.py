"""Events of a tune as lines of a log, the same words that the live view uses."""

from __future__ import annotations

from collections.abc import Mapping

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
from autofit.text_format import duration, number, one_line, speedup
from autofit.trial.metric import Metric
from autofit.trial.workload import Workload

# An interval whose ends differ by more than this factor is no news: after three rounds of a
# wild machine it may span forty powers of ten.
_TELLING = 100.0
_METRIC_UNITS: dict[Metric, str] = {
    "request_s": "s/request",
    "pp": "pp/s",
    "tg": "tg/s",
    "ttft": "s to first token",
}


def event_line(event: Event, workload: Workload, numbers: Mapping[str, int]) -> str:
    """The event as one line of a log; empty where it is not worth one.

    `numbers` tell by a candidate's key its first launch.
    """
    if isinstance(event, PhaseStarted):
        limit = f" (at most {event.max_launches} launches)" if event.max_launches else ""
        return f"phase {event.phase}{limit}"
    if isinstance(event, LaunchEnded):
        known = " (known from before)" if event.is_reused else ""
        return _trial_line(trial_row(event.trial, workload)) + known
    if isinstance(event, Incumbent):
        return incumbent_line(event)
    if isinstance(event, BoundaryMoved):
        return boundary_line(event)
    if isinstance(event, RoundEnded):
        return round_line(event, numbers)
    if isinstance(event, Notice):
        return f"notice: {one_line(event.text)}"
    return ""


def _trial_line(row: TrialRow) -> str:
    what = " ".join(part for part in (f"#{row.number}", row.phase, row.layout, row.params) if part)
    told = f"{what}: {row.outcome} in {row.seconds}"
    if not row.is_completed:
        return f"{told}: {row.evidence}" if row.evidence else told
    speeds = zip(
        _METRIC_UNITS.values(),
        (row.request_s, row.pp_per_s, row.tg_per_s, row.ttft_s),
        strict=True,
    )
    measured = ", ".join(f"{value} {unit}" for unit, value in speeds if value)
    free = f"; free {row.free_mib}" if row.free_mib else ""
    notes = "".join(f"; {note}" for note in row.notes)
    # A launch at the boundary is there to hold the longest prompt, not to be timed.
    nothing = "fits" if row.phase == "boundary" else "nothing measured"
    if row.phase == "prove":
        nothing = "holds at full context" if row.role == "proof" else row.purpose
    return f"{told}: {measured or nothing}{free}{notes}"


def boundary_line(event: BoundaryMoved) -> str:
    """What is known of a boundary."""
    fits = "nothing known to fit" if event.fits is None else f"{event.fits} fit"
    fails = "nothing known to fail" if event.fails is None else f"{event.fails} fail"
    where = one_line(f"{event.layout} {event.cache_type} ubatch={event.ubatch}")
    return f"host expert layers, {where}: {fits}, {fails}"


def incumbent_line(event: Incumbent) -> str:
    """The best so far, which a confirmation has yet to confirm."""
    gain = f", {speedup(event.gain)} the baseline" if event.gain is not None else ""
    is_slower = event.gain is not None and event.gain < 1
    best = "best candidate so far" if is_slower else "best so far"
    value = f"{number(event.value)} {_METRIC_UNITS[event.metric]}"
    return f"{best}: #{event.number}, {value}{gain}, unconfirmed"


def round_line(event: RoundEnded, numbers: Mapping[str, int]) -> str:
    """What the rounds so far say of the fastest; its interval holds at every look."""
    rounds = f"round {event.number} of at most {event.max_rounds}"
    if event.leader is None:
        return f"{rounds}: nothing is left to compare"
    first = numbers.get(event.leader)
    leader = one_line(event.leader) if first is None else f"#{first}"
    if event.ratio is None:
        return f"{rounds}: {leader} leads"
    low, high = event.ratio.low, event.ratio.high
    interval = "no interval yet"
    if low is not None and high is not None:
        interval = f"interval {number(low)} to {number(high)}"
        if high > _TELLING * low:
            interval = "its interval is still too wide to tell anything"
    # The sides of a comparison are no candidates' keys.
    is_side = first is None and event.baseline is not None
    other = one_line(event.baseline) if is_side else "the baseline"
    return f"{rounds}: {leader} is {speedup(event.ratio.median)} {other}, {interval}"


def overrun_line(phase: str, budget_s: float, spent_s: float) -> str:
    """That a phase goes on past the budget, for how long and why."""
    what = (
        "prove goes on: without a proof there is no result"
        if phase == "prove"
        else "confirm takes a little more while there are too few rounds to say anything"
        if phase == "confirm"
        else f"{phase} ends with this launch, which is not cut off"
    )
    over = duration(spent_s - budget_s)
    return f"the budget of {duration(budget_s)} is spent ({over} over); {what}"
