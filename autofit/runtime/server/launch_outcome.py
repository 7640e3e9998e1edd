"""What came of a launch: everything seen of it from outside and in its log, judged once."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autofit.process import Ready
from autofit.runtime.diagnosis.diagnose import Diagnosis, diagnose, diagnose_response
from autofit.runtime.diagnosis.memory_evidence import (
    ExpectedSlots,
    ExpectedUsage,
    find_refused_slots,
    find_spill,
)
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.logs.server_log import ServerLog
from autofit.runtime.server.applied_settings import find_unapplied, read_applied
from autofit.runtime.server.client import RequestFailure
from autofit.trial.candidate import Candidate, Limits, ParamValue
from autofit.trial.measurement import MemoryReading, ReportedMemory
from autofit.trial.outcome import (
    Completed,
    Crashed,
    Incorrect,
    Outcome,
    OutOfMemory,
    Spilled,
    TimedOut,
)

# With this much of the host's memory left, nobody kills a process for want of it.
_PLENTY_MIB = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceObservation:
    """What the counters of machine and process showed of a launch.

    `free_mib` is what was free at the peak by device, `unreported_mib` what a launch takes of
    a device beside the runtime's buffers where earlier ones have shown it, `slots` the
    prefetch slots that it is to take, `shared` the devices whose memory is not their own.
    `oom_kills` counts the kernel's kills for want of memory meanwhile, None where it is not
    known; `stood_still` tells that a server that was late did nothing at all.
    """

    readings: tuple[MemoryReading, ...] = ()
    free_mib: Mapping[str, float | None] = field(default_factory=dict)
    unreported_mib: Mapping[str, float] = field(default_factory=dict)
    slots: ExpectedSlots | None = None
    shared: Collection[str] = ()
    oom_kills: int | None = None
    stood_still: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchObservation:
    """What was seen of a launch from outside.

    `died` is the exit status of a process that ended by itself, None for one that ran until
    it was stopped. `failure` is what ended the requests early. `units` are the model's layers
    and output layer, `limits_mib` what the user lets a device hold, which may be less than it
    has.
    """

    candidate: Candidate
    ready: Ready
    died: int | None
    failure: RequestFailure | Incorrect | None
    props: Mapping[str, Any]
    limits: Limits
    units: int | None = None
    limits_mib: Mapping[str, float] = field(default_factory=dict)
    watched: ResourceObservation = field(default_factory=ResourceObservation)


@dataclass(frozen=True, slots=True)
class JudgedLaunch:
    """The outcome with what the runtime said of the launch; `applied` by parameter name."""

    outcome: Outcome
    log: ServerLog
    applied: Mapping[str, ParamValue]
    advice: tuple[str, ...] = ()


def judge_launch(dialect: Dialect, log_path: Path, seen: LaunchObservation) -> JudgedLaunch:
    """Judge a launch that is over; its log is read once, in bounded memory."""
    counted = {name: mib for name, mib in seen.watched.free_mib.items() if mib is not None}
    with log_path.open(encoding="utf-8", errors="replace") as lines:
        told = diagnose(lines, dialect, exit_status=seen.died, free_mib=counted or None)
    applied = {**told.log.values, **read_applied(dialect, seen.props)}
    outcome = _outcome(dialect, seen, told, applied)
    if outcome.kind in ("completed", "timed_out"):
        outcome = _refused_slots(seen, told.log) or _spilled(seen, told.log) or outcome
    return JudgedLaunch(outcome, told.log, applied, told.advice)


def reported_memory(log: ServerLog) -> dict[str, ReportedMemory]:
    """The runtime's memory table, or for devices that it lacks what the log says of buffers.

    A cache of experts that a build's table leaves out is put into the context.
    """
    by_log = {
        device: ReportedMemory(
            model_mib=log.mib("weights", device),
            context_mib=_context_mib(log, device),
            compute_mib=log.mib("compute", device),
        )
        for device in {buffer.device for buffer in log.buffers}
        if device is not None
    }
    return {name: _with_cache(log, name, row) for name, row in {**by_log, **log.reported}.items()}


def _context_mib(log: ServerLog, device: str) -> float:
    return log.mib("kv", device) + log.mib("recurrent", device)


def _with_cache(log: ServerLog, device: str, row: ReportedMemory) -> ReportedMemory:
    cache_mib = log.mib("cache", device)
    if not cache_mib:
        return row
    is_counted = row.context_mib - _context_mib(log, device) > cache_mib / 2
    context_mib = row.context_mib if is_counted else row.context_mib + cache_mib
    return replace(row, context_mib=context_mib, expert_cache_mib=cache_mib)


def _refused_slots(seen: LaunchObservation, log: ServerLog) -> OutOfMemory | None:
    wanted = seen.watched.slots
    row = reported_memory(log).get(wanted.device) if wanted else None
    if wanted is None:
        return None
    return find_refused_slots(
        seen.watched.readings,
        wanted,
        buffers_mib=row.buffers_mib if row else 0.0,
        refused_mib=log.refused_mib,
    )


def _spilled(seen: LaunchObservation, log: ServerLog) -> Spilled | None:
    watched = seen.watched
    spill = find_spill(
        watched.readings,
        [
            ExpectedUsage(
                device=name,
                buffers_mib=row.buffers_mib,
                unreported_mib=watched.unreported_mib.get(name),
                is_shared=name in watched.shared,
            )
            for name, row in reported_memory(log).items()
        ],
        pinned_mib=sum(buffer.mib for buffer in log.buffers if buffer.where == "pinned"),
    )
    return spill.outcome if spill else None


def _outcome(
    dialect: Dialect, seen: LaunchObservation, told: Diagnosis, applied: Mapping[str, ParamValue]
) -> Outcome:
    if seen.ready is Ready.TIMED_OUT:
        late = f"not ready within {seen.limits.load_s:.0f} s; last line: {told.evidence}"
        return _failure_of(told) or _late(seen, TimedOut(told.stage, late, seen.limits.load_s))
    if seen.ready is Ready.EXITED:
        return _failed(seen, told) or _exited(told, seen.died)
    unapplied = find_unapplied(seen.candidate, applied, units=seen.units)
    if unapplied is not None:
        return unapplied
    if seen.failure is None and seen.died is None:
        return _over_limit(told.log, seen.limits_mib) or Completed()
    if seen.failure is None:
        return _failed(seen, told) or _exited(told, seen.died)
    if isinstance(seen.failure, Incorrect):
        return _failed(seen, told) or seen.failure
    return _failed(seen, told) or _unanswered(dialect, seen, seen.failure, told)


def _over_limit(log: ServerLog, limits_mib: Mapping[str, float]) -> OutOfMemory | None:
    """A device that holds more than the user lets it, though it had the room."""
    for name, limit_mib in limits_mib.items():
        row = reported_memory(log).get(name)
        taken_mib = row.buffers_mib if row else 0.0
        if taken_mib > limit_mib:
            text = f"{name} took {taken_mib:.0f} MiB, {limit_mib:.0f} MiB are allowed"
            return OutOfMemory("context", text, "device", None, name, taken_mib)
    return None


def _failure_of(told: Diagnosis) -> Outcome | None:
    return told.outcome if told.is_failure else None


def _failed(seen: LaunchObservation, told: Diagnosis) -> Outcome | None:
    """The failure that the log or the exit status tells, a kill put down to who did it."""
    outcome = _failure_of(told)
    if outcome is not None and _is_generating(seen.failure):
        outcome = _while_generating(outcome)
    is_kill = seen.died == -signal.SIGKILL and told.reason == "killed"
    if outcome is None or not is_kill:
        return outcome
    kills = seen.watched.oom_kills
    if kills:
        return replace(outcome, evidence=f"{outcome.evidence}; the kernel had no memory left")
    left = [reading.host_available_mib for reading in seen.watched.readings]
    left_mib = min((mib for mib in left if mib is not None), default=0.0)
    # Weights are read faster than memory is looked at; what comes later takes little of the host.
    is_unseen = kills is None and outcome.stage in ("load", "context")
    if is_unseen or left_mib < _PLENTY_MIB:
        return outcome
    nobody = "" if kills is None else "the kernel killed nobody, "
    text = f"{told.evidence}; not for memory: {nobody}{left_mib:.0f} MiB were left"
    return Crashed(outcome.stage, text, "killed", seen.died)


def _is_generating(failure: RequestFailure | Incorrect | None) -> bool:
    return isinstance(failure, RequestFailure) and failure.stage == "generate"


def _while_generating(outcome: Outcome) -> Outcome:
    """The outcome, where the client saw the first token, which no log or answer tells."""
    return replace(outcome, stage="generate") if outcome.stage == "prompt" else outcome


def _late(seen: LaunchObservation, outcome: TimedOut) -> Outcome:
    if not seen.watched.stood_still:
        return outcome
    text = f"{outcome.evidence}; it did nothing any more: no output, no CPU time, no reading"
    return Crashed(outcome.stage, text, "hang")


def _exited(told: Diagnosis, status: int | None) -> Outcome:
    text = f"exited with status {status} without a reason; last line: {told.evidence}"
    return Crashed(told.stage, text, exit_status=status)


def _unanswered(
    dialect: Dialect, seen: LaunchObservation, failure: RequestFailure, told: Diagnosis
) -> Outcome:
    if seen.died is not None:
        return _exited(told, seen.died)
    if failure.kind == "timed_out":
        return _late(seen, TimedOut(failure.stage, failure.detail, failure.limit_s))
    if failure.kind == "malformed":
        return Incorrect(failure.stage, failure.detail)
    if failure.kind == "http":
        answer = diagnose_response(failure.status or 500, failure.body, dialect)
        if answer is None:
            return Crashed(failure.stage, f"HTTP {failure.status}: {failure.body[:500]}")
        return _while_generating(answer) if _is_generating(failure) else answer
    text = f"the connection broke off, though the server lived on: {failure.detail}"
    return Crashed(failure.stage, text)
