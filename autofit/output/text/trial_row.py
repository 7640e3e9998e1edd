"""One trial as short texts, the same in every table."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autofit.text_format import duration, mib, number, one_line, params_line
from autofit.trial.candidate import Params
from autofit.trial.device import HOST_NAME
from autofit.trial.metric import median_metric
from autofit.trial.outcome import Crashed, Outcome, OutOfMemory, Rejected, Spilled, TimedOut
from autofit.trial.purpose import Role
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# The count of layers with experts in RAM where an override of tensors places them.
HOST_EXPERTS = "host_experts"
# The layout's name says where the layers are; the workload says the rest.
_SHOWN_ELSEWHERE = {
    "devices",
    "n_gpu_layers",
    "tensor_split",
    "override_tensor",
    "context",
    "parallel",
}

# The params that the runtime's own settings have; a user's command has more.
OWN_PARAMS = frozenset({"context", "parallel", "devices", "fit_target"})


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial as cells of a table, all on one line and safe for a terminal."""

    number: int
    phase: str
    role: Role
    layout: str
    params: str
    outcome: str
    is_completed: bool
    request_s: str
    pp_per_s: str
    tg_per_s: str
    ttft_s: str
    free_mib: str
    least_free: str
    seconds: str
    evidence: str
    purpose: str
    notes: tuple[str, ...]


def trial_rows(trials: Sequence[Trial], workload: Workload) -> tuple[list[TrialRow], str]:
    """Return the cells of all trials, and apart from them the params that all share."""
    common = common_params([trial.candidate.params for trial in trials])
    return [trial_row(trial, workload, common) for trial in trials], brief_params(common)


def trial_row(trial: Trial, workload: Workload, common: Params | None = None) -> TrialRow:
    """Return the cells of one trial without `common` params; unmeasured cells are empty."""
    measurement = trial.measurement

    def value(metric: str) -> str:
        found = median_metric(measurement, workload, metric)  # type: ignore[arg-type]
        return "" if found is None else number(found)

    free = measurement.free_mib if measurement else {}
    return TrialRow(
        number=trial.number,
        phase=trial.phase,
        role=trial.purpose.role,
        layout=one_line(trial.purpose.side or trial.layout),
        params=params_cell(trial.candidate.params, common or {}),
        outcome=outcome_text(trial.outcome),
        is_completed=trial.is_completed,
        request_s=value("request_s"),
        pp_per_s=value("pp"),
        tg_per_s=value("tg"),
        ttft_s=value("ttft"),
        free_mib=", ".join(f"{one_line(name)} {mib(amount)}" for name, amount in free.items()),
        least_free=_least_free(free),
        seconds=duration(trial.seconds),
        evidence=one_line(trial.outcome.evidence),
        purpose=one_line(trial.description),
        notes=tuple(one_line(note) for note in trial.notes),
    )


def _least_free(free_mib: Mapping[str, float | None]) -> str:
    """Return the device with the least free memory at the peak, empty if none is known."""
    known = [
        (amount, name)
        for name, amount in free_mib.items()
        if amount is not None and name != HOST_NAME
    ]
    return f"{mib(min(known)[0])} free on {one_line(min(known)[1])}" if known else ""


def grouped_notes(rows: Iterable[TrialRow]) -> list[str]:
    """Return each remark once, with the numbers of its launches."""
    numbers: dict[str, list[int]] = {}
    for row in rows:
        for note in row.notes:
            numbers.setdefault(note, []).append(row.number)
    return [f"{note} ({_spans(where)})" for note, where in numbers.items()]


def _spans(numbers: Sequence[int]) -> str:
    """Return ascending numbers with consecutive ones joined: `#1 to #4, #9`."""
    spans: list[list[int]] = []
    for each in numbers:
        if spans and each == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], each]
        else:
            spans.append([each])
    return ", ".join(" to ".join(f"#{each}" for each in span) for span in spans)


def common_params(every: Sequence[Params]) -> Params:
    """Return the params that all candidates with explicit settings share."""
    several = [params for params in every if not OWN_PARAMS.issuperset(params)]
    if len(several) < 2:  # noqa: PLR2004 - a single one shares nothing
        return {}
    first, *others = several
    return {k: v for k, v in first.items() if all(k in o and o[k] == v for o in others)}


def params_cell(params: Params, common: Params) -> str:
    """Return a candidate's params without the common ones."""
    if not brief_params(params):
        return "runtime's own settings"
    own = {k: v for k, v in params.items() if k not in common or common[k] != v}
    return brief_params(own) or "as in all"


def brief_settings(params: Params) -> Params:
    """Return the params without those that the layout's name or the workload implies."""
    shown = {k: v for k, v in params.items() if k not in _SHOWN_ELSEWHERE}
    hosted = _hosted_layers(str(params.get("override_tensor", "")))
    return {**({HOST_EXPERTS: hosted} if hosted else {}), **shown}


def brief_params(params: Params) -> str:
    """Return `brief_settings` on one line."""
    return params_line(brief_settings(params))


def _hosted_layers(overrides: str) -> int:
    """Return how many layers an override places in system RAM, in part or whole."""
    to_host = (rule for rule in overrides.split(",") if rule.endswith("=CPU"))
    return len({number for rule in to_host for number in re.findall(r"\d+", rule)})


def outcome_text(outcome: Outcome) -> str:
    """Return an outcome as a few words: its kind, stage and details."""
    kind = outcome.kind.replace("_", " ")
    if outcome.kind in ("completed", "skipped"):
        return kind
    details: list[str | None] = []
    if isinstance(outcome, OutOfMemory):
        details = [outcome.buffer, outcome.device or outcome.where]
    elif isinstance(outcome, Spilled):
        details = [outcome.device]
        if outcome.spilled_mib is not None:
            details.append(mib(outcome.spilled_mib))
    elif isinstance(outcome, Rejected | Crashed) and outcome.reason:
        details = [outcome.reason.replace("_", " ")]
    elif isinstance(outcome, TimedOut) and outcome.limit_s is not None:
        details = [f"after {duration(outcome.limit_s)}"]
    known = ", ".join(one_line(detail) for detail in details if detail)
    return f"{kind} at {outcome.stage}" + (f" ({known})" if known else "")


def command_line(
    argv: Sequence[str], env: Mapping[str, str], *, port: int, unset: Iterable[str] = ()
) -> str:
    """Return a POSIX shell command that starts exactly what a trial started.

    `unset` are variables of the reader's environment that autofit removes.
    """
    without = [word for name in sorted(set(unset) - set(env)) for word in ("-u", name)]
    settings = [f"{name}={value}" for name, value in env.items()]
    prefix = ["env", *without, *settings] if without or settings else []
    return shlex.join([*prefix, *(word.replace("{port}", str(port)) for word in argv)])
