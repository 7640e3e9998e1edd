"""A finished launch as one short line: its number, what differs from the best so far, the result.

The study has the rest: `autofit show` and the report list every setting and figure.
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
from autofit.session.finalist import FROZEN
from autofit.text_format import one_line, params_line
from autofit.trial.candidate import Candidate, Params
from autofit.trial.metric import METRICS, Metric
from autofit.trial.parameter_groups import HOST_LAYER_PARAMS, KV_TYPE_PARAMS
from autofit.trial.purpose import TrialPurpose
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
    """Return what identifies a launch's settings: a name, or how they differ from the best."""
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
