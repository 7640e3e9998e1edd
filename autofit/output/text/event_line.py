"""Events of a run as lines: a launch as one short line, and every event as a line of a log.

A short line has the launch's number, the settings that differ from the best so far, and the
result. `autofit show` and the report list every setting and figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autofit.output.text.trial_row import (
    HOST_EXPERTS,
    OWN_PARAMS,
    TrialRow,
    brief_settings,
    trial_row,
)
from autofit.session.events import (
    BoundaryMoved,
    Event,
    Incumbent,
    LaunchEnded,
    Notice,
    PhaseStarted,
    RoundEnded,
)
from autofit.session.finalist import FROZEN
from autofit.text_format import as_fast, duration, number, one_line, params_line
from autofit.trial.candidate import Candidate, Params
from autofit.trial.metric import METRICS, Metric
from autofit.trial.parameter_groups import HOST_LAYER_PARAMS, KV_TYPE_PARAMS
from autofit.trial.purpose import Phase, TrialPurpose
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# The width of a line where there is no terminal to ask.
COLUMNS = 100
_HOST_LAYERS = (*HOST_LAYER_PARAMS, HOST_EXPERTS)
# The settings of a line are not cut below this.
_LEAST_SETTINGS = 24
METRIC_UNITS: dict[Metric, str] = {
    "request_s": "s/request",
    "pp": "pp/s",
    "tg": "tg/s",
    "ttft": "s to first token",
}
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


def launch_line(
    trial: Trial,
    workload: Workload,
    metric: Metric,
    *,
    best: Trial | None,
    first: Mapping[str, Trial],
    columns: int = COLUMNS,
) -> str:
    """Return a finished launch as one line of at most `columns` characters.

    `first` has the first launch of each candidate by its key. The line names that launch if the
    candidate was launched before.
    """
    row = trial_row(trial, workload)
    name = f"#{trial.number} {_role_text(trial.purpose)}"
    settings = settings_text(
        trial.candidate, trial.layout, trial.purpose, best=best, first=first, number=trial.number
    )
    parts = _result_parts(row, metric)
    room = columns - len(name) - len(parts[0]) - len(", : ")
    settings = _cut(settings, max(room, _LEAST_SETTINGS))
    line = f"{name}{', ' * bool(settings)}{settings}: {parts[0]}"
    for part in parts[1:]:
        if row.is_completed and len(line) + len(part) > columns:
            break
        line += part
    return _cut(line, columns)  # the evidence of a failure is cut


def settings_text(
    candidate: Candidate,
    layout: str,
    purpose: TrialPurpose,
    *,
    best: Trial | None,
    first: Mapping[str, Trial],
    number: int,
) -> str:
    """Return a short text for a launch's settings: a name, or how they differ from the best."""
    if purpose.side:
        return one_line(purpose.side)
    own = dict(brief_settings(candidate.params))
    if OWN_PARAMS.issuperset(candidate.params):
        return "own settings"
    if purpose.role == "baseline":
        return "your settings"
    earlier = first.get(candidate.key)
    if earlier is not None and earlier.number != number:
        return f"settings of #{earlier.number}"
    if layout == FROZEN:
        return "own settings written out"
    known = brief_settings(best.candidate.params) if best is not None else {}
    # A probe changes the count of host layers, so its lines always show it.
    always = _HOST_LAYERS if purpose.role == "fit_check" else ()
    shown = {n: value for n, value in own.items() if known.get(n) != value or n in always}
    has_layout = bool(layout) and (best is None or layout != best.layout)
    layers = {name: shown.pop(name) for name in _HOST_LAYERS if name in shown}
    parts = [
        params_line(layers),
        one_line(layout) if has_layout else "",
        params_line(_with_one_kv_type(shown)),
        *(f"without {one_line(name)}" for name in known if name not in own),
    ]
    return " ".join(filter(None, parts)) or "as the best so far"


def _with_one_kv_type(params: Params) -> Params:
    """Return the params with one type for keys and values if both are the same."""
    keys, values = (params.get(name) for name in KV_TYPE_PARAMS)
    if keys is None or keys != values:
        return params
    renamed = {KV_TYPE_PARAMS[0]: "cache_type"}
    return {renamed.get(n, n): value for n, value in params.items() if n != KV_TYPE_PARAMS[1]}


def _role_text(purpose: TrialPurpose) -> str:
    if purpose.role == "round":
        return f"round {purpose.round}"
    if purpose.role in ("baseline", "explore", "fit_check"):
        return purpose.phase
    return "proof" if purpose.role == "proof" else one_line(purpose.description)


def _result_parts(row: TrialRow, metric: Metric) -> Sequence[str]:
    """Return the result, and then additions to it, the most important first."""
    if not row.is_completed:
        return [row.outcome, f": {row.evidence}" if row.evidence else ""]
    speeds = list(_speeds(row, metric))
    free = f", {row.least_free}" if row.least_free else ""
    if not speeds:
        is_answer = row.phase == "prove" and row.role != "proof"
        return ["done" if is_answer else unmeasured_text(row), free]
    return [speeds[0], *(f", {speed}" for speed in speeds[1:]), free]


def _speeds(row: TrialRow, metric: Metric) -> Iterator[str]:
    """Yield the measured speeds, the objective first; the first token only as the objective."""
    values = {"request_s": row.request_s, "pp": row.pp_per_s, "tg": row.tg_per_s}
    if metric == "ttft":
        values["ttft"] = row.ttft_s
    for name in sorted(METRICS, key=lambda one: one != metric):
        if values.get(name):
            yield f"{values[name]} {METRIC_UNITS[name]}"


def unmeasured_text(row: TrialRow) -> str:
    """Return the finding of a completed launch that measured no speed."""
    if row.phase == "prove":
        return "runs at full context" if row.role == "proof" else row.purpose
    return "fits" if row.phase == "boundary" else "nothing measured"


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: columns - 3] + "..."


def event_line(event: Event, workload: Workload, numbers: Mapping[str, int]) -> str:
    """Return one line with all details of an event, or "" for an event that is not logged.

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
    """Return a short line for an event, or "" for an event that is not shown.

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
        else "confirm ends as soon as its rounds can be compared"
        if phase == "confirm"
        else f"{phase} ends after this launch"
    )
    over = duration(spent_s - budget_s)
    return f"budget of {duration(budget_s)} used up ({over} over); {reason}"
