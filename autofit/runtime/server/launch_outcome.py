"""The outcome of a launch, from its log and everything observed from outside."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autofit.process.managed_process import Readiness
from autofit.runtime.diagnosis.diagnose import Diagnosis, diagnose, diagnose_response
from autofit.runtime.diagnosis.memory_evidence import (
    ExpectedSlots,
    ExpectedUsage,
    find_refused_slots,
    find_spill,
)
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.logs.log_line import read_lines
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
    TimedOut,
)

# With this much free host memory, the kernel kills no process to free memory.
_PLENTY_MIB = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchObservation:
    """Everything observed of a launch from outside, with what was expected of it.

    Attributes:
        exit_status: the status of a process that ended by itself; None if it was stopped.
        failure: the failure that ended the requests early.
        props: the response of the props endpoint.
        units: the number of the model's layers, including the output layer.
        limits_mib, headroom_mib: the memory that the user allows, and that must stay free, by
            device.
        readings: memory from before the launch to after its stop.
        free_mib: free memory at the peak, by device.
        unreported_mib: memory that a launch uses in addition to the runtime's buffers, by
            device, if earlier launches showed it.
        slots: the prefetch slots that the launch should allocate.
        shared: the devices whose memory is the host's or another process's.
        oom_kills: the number of processes that the kernel killed to free memory; None if unknown.
        is_hung: whether a server that was late did nothing at all.
    """

    candidate: Candidate
    ready: Readiness
    exit_status: int | None
    failure: RequestFailure | Incorrect | None
    props: Mapping[str, Any]
    limits: Limits
    units: int | None = None
    limits_mib: Mapping[str, float] = field(default_factory=dict)
    headroom_mib: Mapping[str, float] = field(default_factory=dict)
    readings: tuple[MemoryReading, ...] = ()
    free_mib: Mapping[str, float | None] = field(default_factory=dict)
    unreported_mib: Mapping[str, float] = field(default_factory=dict)
    slots: ExpectedSlots | None = None
    shared: Collection[str] = ()
    oom_kills: int | None = None
    is_hung: bool = False


@dataclass(frozen=True, slots=True)
class JudgedLaunch:
    """The outcome of a launch, the facts of its log, and the applied settings by parameter."""

    outcome: Outcome
    log: ServerLog
    applied: Mapping[str, ParamValue]
    advice: tuple[str, ...] = ()


def judge_launch(dialect: Dialect, log_path: Path, observation: LaunchObservation) -> JudgedLaunch:
    """Judge a finished launch; its log is read once, in bounded memory."""
    known_mib = {name: mib for name, mib in observation.free_mib.items() if mib is not None}
    with log_path.open("rb") as stream:
        status = observation.exit_status
        lines = read_lines(stream)
        diagnosis = diagnose(lines, dialect, exit_status=status, free_mib=known_mib or None)
    log = diagnosis.log
    applied = {**log.values, **read_applied(dialect, observation.props)}
    outcome = _find_outcome(dialect, observation, diagnosis, applied)
    if outcome.kind in ("completed", "timed_out"):
        outcome = _find_silent_failure(observation, log) or outcome
    return JudgedLaunch(outcome, log, applied, diagnosis.advice)


def reported_memory(log: ServerLog) -> dict[str, ReportedMemory]:
    """Return the runtime's memory table; add the logged buffers of devices that it lacks.

    A cache of experts counts as context, also in builds whose table leaves it out.
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
    return {name: _add_cache(log, name, row) for name, row in {**by_log, **log.reported}.items()}


def _context_mib(log: ServerLog, device: str) -> float:
    return log.mib("kv", device) + log.mib("recurrent", device)


def _add_cache(log: ServerLog, device: str, row: ReportedMemory) -> ReportedMemory:
    cache_mib = log.mib("cache", device)
    if not cache_mib:
        return row
    is_counted = row.context_mib - _context_mib(log, device) > cache_mib / 2
    context_mib = row.context_mib if is_counted else row.context_mib + cache_mib
    return replace(row, context_mib=context_mib, expert_cache_mib=cache_mib)


def _find_silent_failure(observation: LaunchObservation, log: ServerLog) -> Outcome | None:
    """Return the failure that only memory counters show: refused slots, or a spill."""
    rows = reported_memory(log)
    slots = observation.slots
    if slots is not None:
        buffers_mib = rows[slots.device].buffers_mib if slots.device in rows else 0.0
        refused = find_refused_slots(
            observation.readings, slots, buffers_mib=buffers_mib, refused_mib=log.refused_mib
        )
        if refused is not None:
            return refused
    expected = [
        ExpectedUsage(
            device=name,
            buffers_mib=row.buffers_mib,
            unreported_mib=observation.unreported_mib.get(name),
            is_shared=name in observation.shared,
        )
        for name, row in rows.items()
    ]
    pinned_mib = sum(buffer.mib for buffer in log.buffers if buffer.where == "pinned")
    return find_spill(observation.readings, expected, pinned_mib=pinned_mib)


def _find_outcome(
    dialect: Dialect,
    observation: LaunchObservation,
    diagnosis: Diagnosis,
    applied: Mapping[str, ParamValue],
) -> Outcome:
    failure = observation.failure
    if observation.ready is Readiness.TIMED_OUT:
        limit_s = observation.limits.load_s
        text = f"not ready within {limit_s:.0f} s; last line: {diagnosis.evidence}"
        timed_out = TimedOut(diagnosis.stage, text, limit_s)
        return _logged_failure(diagnosis) or _check_hang(observation, timed_out)
    if observation.ready is Readiness.READY:
        unapplied = find_unapplied(observation.candidate, applied, units=observation.units)
        if unapplied is not None:
            return unapplied
        if failure is None and observation.exit_status is None:
            return _find_over_limit(diagnosis.log, observation) or Completed()
    logged = _attribute_failure(observation, diagnosis)
    if logged is not None:
        return logged
    if isinstance(failure, Incorrect):
        return failure
    if failure is None or observation.exit_status is not None:
        status = observation.exit_status
        text = f"exited with status {status} without a reason; last line: {diagnosis.evidence}"
        return Crashed(diagnosis.stage, text, exit_status=status)
    return _judge_failed_request(dialect, observation, failure)


def _find_over_limit(log: ServerLog, observation: LaunchObservation) -> OutOfMemory | None:
    """Return the outcome of a launch that uses more of a device than the user allows."""
    reported = reported_memory(log)
    for name, headroom_mib in observation.headroom_mib.items():
        free_mib = observation.free_mib.get(name)
        if name in reported and free_mib is not None and free_mib < headroom_mib:
            text = f"{name}: {free_mib:.0f} MiB stay free, but {headroom_mib:.0f} MiB must"
            used_mib = reported[name].buffers_mib
            return OutOfMemory("context", text, "device", None, name, used_mib)
    for name, limit_mib in observation.limits_mib.items():
        row = reported.get(name)
        used_mib = row.buffers_mib if row else 0.0
        if used_mib > limit_mib:
            text = f"{name}: {used_mib:.0f} MiB are used, but only {limit_mib:.0f} MiB are allowed"
            return OutOfMemory("context", text, "device", None, name, used_mib)
    return None


def _logged_failure(diagnosis: Diagnosis) -> Outcome | None:
    return diagnosis.outcome if diagnosis.is_failure else None


def _attribute_failure(observation: LaunchObservation, diagnosis: Diagnosis) -> Outcome | None:
    """Return the failure that log or exit status show, with the reason if it was killed."""
    outcome = _logged_failure(diagnosis)
    if outcome is None:
        return None
    outcome = _correct_stage(outcome, observation.failure)
    if observation.exit_status != -signal.SIGKILL or diagnosis.reason != "killed":
        return outcome
    kills = observation.oom_kills
    if kills:
        text = f"{outcome.evidence}; the kernel killed it to free memory"
        return replace(outcome, evidence=text)
    readings = observation.readings
    free = [r.host_available_mib for r in readings if r.host_available_mib is not None]
    free_mib = min(free, default=0.0)
    # Weights load faster than memory is sampled. Later stages use little host memory.
    is_unobserved = kills is None and outcome.stage in ("load", "context")
    if is_unobserved or free_mib < _PLENTY_MIB:
        return outcome
    kernel = "" if kills is None else "the kernel killed no process, "
    text = f"{diagnosis.evidence}; memory is not the cause: {kernel}{free_mib:.0f} MiB were free"
    return Crashed(outcome.stage, text, "killed", observation.exit_status)


def _correct_stage(outcome: Outcome, failure: RequestFailure | Incorrect | None) -> Outcome:
    """Set the stage to generation if the client received a token; no log shows that."""
    is_generating = isinstance(failure, RequestFailure) and failure.stage == "generate"
    is_prompt = outcome.stage == "prompt"
    return replace(outcome, stage="generate") if is_generating and is_prompt else outcome


def _check_hang(observation: LaunchObservation, outcome: TimedOut) -> Outcome:
    if not observation.is_hung:
        return outcome
    text = f"{outcome.evidence}; the server hangs: no output, no CPU time, no disk reads"
    return Crashed(outcome.stage, text, "hang")


def _judge_failed_request(
    dialect: Dialect, observation: LaunchObservation, failure: RequestFailure
) -> Outcome:
    stage, text = failure.stage, failure.detail
    if failure.kind == "timed_out":
        return _check_hang(observation, TimedOut(stage, text, failure.limit_s))
    if failure.kind == "malformed":
        return Incorrect(stage, text)
    if failure.kind == "http":
        outcome = diagnose_response(failure.status or 500, failure.body, dialect)
        if outcome is None:
            return Crashed(stage, f"HTTP {failure.status}: {failure.body[:500]}")
        return _correct_stage(outcome, failure)
    return Crashed(stage, f"the connection broke, but the server still runs: {text}")
