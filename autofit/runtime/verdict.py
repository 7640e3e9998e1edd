"""What came of a launch: everything seen of it from outside and in its log, judged once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autofit.process import Ready
from autofit.runtime.client import RequestFailure
from autofit.runtime.dialect import Dialect
from autofit.runtime.failure import Diagnosis, diagnose, diagnose_answer
from autofit.runtime.readback import applied_by_props, find_unapplied
from autofit.runtime.server_log import ServerLog
from autofit.trial.candidate import Candidate, Limits, ParamValue
from autofit.trial.outcome import (
    Completed,
    Crashed,
    Incorrect,
    Outcome,
    OutOfMemory,
    TimedOut,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of a launch from outside.

    `died` is the exit status of a process that ended by itself, None for one that ran until
    it was stopped. `failure` is what ended the requests early. `units` are the model's layers
    and output layer, `free_mib` what was free at the peak by device, `limits_mib`
    what the user lets a device hold, which may be less than it has.
    """

    candidate: Candidate
    ready: Ready
    died: int | None
    failure: RequestFailure | Incorrect | None
    props: Mapping[str, Any]
    limits: Limits
    units: int | None = None
    free_mib: Mapping[str, float | None] = field(default_factory=dict)
    limits_mib: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome with what the runtime said of the launch; `applied` by parameter name."""

    outcome: Outcome
    log: ServerLog
    applied: Mapping[str, ParamValue]
    advice: tuple[str, ...] = ()


def judge(dialect: Dialect, log_path: Path, seen: Seen) -> Verdict:
    """Judge a launch that is over; its log is read once, in bounded memory."""
    counted = {name: mib for name, mib in seen.free_mib.items() if mib is not None}
    with log_path.open(encoding="utf-8", errors="replace") as lines:
        told = diagnose(lines, dialect, exit_status=seen.died, free_mib=counted or None)
    applied = {**told.log.values, **applied_by_props(dialect, seen.props)}
    return Verdict(_outcome(dialect, seen, told, applied), told.log, applied, told.advice)


def _outcome(
    dialect: Dialect, seen: Seen, told: Diagnosis, applied: Mapping[str, ParamValue]
) -> Outcome:
    if seen.ready is Ready.TIMED_OUT:
        late = f"not ready within {seen.limits.load_s:.0f} s; last line: {told.evidence}"
        return _failure_of(told) or TimedOut(told.stage, late, seen.limits.load_s)
    if seen.ready is Ready.EXITED:
        return _failure_of(told) or _exited(told, seen.died)
    unapplied = find_unapplied(seen.candidate, applied, units=seen.units)
    if unapplied is not None:
        return unapplied
    if seen.failure is None and seen.died is None:
        return _over_limit(told.log, seen.limits_mib) or Completed()
    if seen.failure is None:
        return _failure_of(told) or _exited(told, seen.died)
    if isinstance(seen.failure, Incorrect):
        return _failure_of(told) or seen.failure
    return _failure_of(told) or _unanswered(dialect, seen, seen.failure, told)


def _over_limit(log: ServerLog, limits_mib: Mapping[str, float]) -> OutOfMemory | None:
    """A device that holds more than the user lets it, though it had the room."""
    for name, limit_mib in limits_mib.items():
        row = log.reported.get(name)
        taken_mib = row.model_mib + row.context_mib + row.compute_mib if row else 0.0
        if taken_mib > limit_mib:
            text = f"{name} took {taken_mib:.0f} MiB, {limit_mib:.0f} MiB are allowed"
            return OutOfMemory("context", text, "device", None, name, taken_mib)
    return None


def _failure_of(told: Diagnosis) -> Outcome | None:
    return told.outcome if told.is_failure else None


def _exited(told: Diagnosis, status: int | None) -> Outcome:
    text = f"exited with status {status} without a reason; last line: {told.evidence}"
    return Crashed(told.stage, text, exit_status=status)


def _unanswered(dialect: Dialect, seen: Seen, failure: RequestFailure, told: Diagnosis) -> Outcome:
    if seen.died is not None:
        return _exited(told, seen.died)
    if failure.kind == "timed_out":
        limits = seen.limits
        limit_s = limits.prompt_s if failure.stage == "prompt" else limits.generate_s
        return TimedOut(failure.stage, failure.detail, limit_s)
    if failure.kind == "malformed":
        return Incorrect(failure.stage, failure.detail)
    if failure.kind == "http":
        answer = diagnose_answer(failure.status or 500, failure.body, dialect)
        return answer or Crashed(failure.stage, f"HTTP {failure.status}: {failure.body[:500]}")
    return Crashed(failure.stage, f"the connection broke off: {failure.detail}", "hang")
