"""The diagnosis of a server from its log and exit status, or from its HTTP response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic_core import from_json

from autofit.runtime.diagnosis.advice import advise, has_enough_free
from autofit.runtime.diagnosis.exit_status import (
    classify_exit,
    describe_status,
    normalize_status,
)
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.dialect.log_patterns import BufferTypes, LinePattern
from autofit.runtime.logs.failure_tracker import FailureTracker, LoggedFailure
from autofit.runtime.logs.log_line import CompiledPattern
from autofit.runtime.logs.log_reader import LogReader, LogRun
from autofit.runtime.logs.server_log import ServerLog, find_device_by_index, locate_buffer
from autofit.trial.outcome import (
    Buffer,
    Completed,
    Crashed,
    CrashedReason,
    Incorrect,
    Outcome,
    OutOfMemory,
    Rejected,
    RejectedReason,
    Spilled,
    Stage,
    TimedOut,
    Where,
)

# A server that exits without a message while it computes was out of memory if a device had
# less than this left: drivers use several hundred MiB that no line of the log reports.
_TIGHT_MIB = 512.0
_LIBRARY = (
    "a DLL that the program needs is missing or of another version: install the runtime libraries "
    "of its build (CUDA, ROCm, oneAPI, the C++ runtime), or add their folder to PATH"
)
_COMPUTING: frozenset[Stage] = frozenset({"warmup", "prompt", "generate"})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The outcome of a launch with advice; `outcome` is None if it is not known.

    `reason` is the outcome's, if it has one. If the log has no failed allocation but memory is the
    likely cause, `reason` is why (`killed`, `device_lost`). `child` is the port of a router's
    child, empty for a server of its own.
    """

    outcome: Outcome | None
    stage: Stage
    evidence: str
    log: ServerLog
    reason: str | None = None
    advice: tuple[str, ...] = ()
    child: str = ""

    @property
    def kind(self) -> str:
        """The outcome's kind, or `unknown`."""
        return self.outcome.kind if self.outcome else "unknown"

    @property
    def is_failure(self) -> bool:
        """True if the outcome is known and is a failure."""
        return self.kind not in {"completed", "unknown"}


def diagnose(
    lines: Iterable[str],
    dialect: Dialect,
    *,
    exit_status: int | None = None,
    free_mib: Mapping[str, float | None] | None = None,
) -> Diagnosis:
    """Diagnose the last run in a log, or an earlier one if only that one failed.

    Of a router's children the one that failed is diagnosed. The log is read once, in bounded
    memory.

    Args:
        lines: the lines of the log.
        dialect: the dialect of the server.
        exit_status: the status of the server or router, as `normalize_status` returns it. None if
            it is not known, or if the server still runs.
        free_mib: the least free memory measured on each device.
    """
    failed: list[Diagnosis] = []

    def keep_failure(run: LogRun, source: str) -> None:
        diagnosis = replace(_RunDiagnosis(run, dialect, None, None).diagnose(), child=source)
        if diagnosis.is_failure:
            failed[:] = [diagnosis]

    runs = LogReader(dialect.log, dialect.failures, keep_failure).read(lines).runs
    own = runs[""]
    is_only_child = len(runs) == 2 and own.last_number == 0  # noqa: PLR2004 - itself and one
    diagnoses = []
    for source, run in sorted(runs.items(), key=lambda item: item[1].last_number):
        if source and not is_only_child:
            child_status = own.child_statuses.get(source)
            status = None if child_status is None else normalize_status(child_status)
        else:
            status = exit_status
        diagnosis = _RunDiagnosis(run, dialect, status, free_mib).diagnose()
        diagnoses.append(replace(diagnosis, child=source))
    current = [diagnosis for diagnosis in diagnoses if diagnosis.is_failure]
    good = [diagnosis for diagnosis in diagnoses if diagnosis.kind == "completed"]
    return (current or failed or good or diagnoses)[-1]


def diagnose_response(status: int, body: str, dialect: Dialect) -> Outcome | None:
    """Return the candidate's failure that an HTTP response shows, if any.

    None if the response is good or the server still loads. The server's log usually contains
    more.
    """
    message = _error_message(body)
    if (status < 400 and message is None) or _matches(dialect.log.harmless, message or ""):  # noqa: PLR2004
        return None
    text = message or body.strip() or f"HTTP {status}"
    tracker = FailureTracker(dialect.failures)
    for number, pattern in enumerate(dialect.failures):
        groups = CompiledPattern.of(None, pattern).groups(text)
        if groups is not None:
            tracker.add(number, groups, text, "prompt")
    failure = tracker.find()
    if failure is not None:
        return _make_outcome(failure, ServerLog(), dialect.log.buffer_types, None)
    if 400 <= status < 500:  # noqa: PLR2004 - HTTP's range for errors of the client
        return Rejected("prompt", text, "bad_value")
    return Crashed("prompt", text)


def _error_message(body: str) -> str | None:
    """Return the message of an error response, or of an error event in a stream."""
    for line in body.splitlines() or [body]:
        try:
            document = from_json(line.removeprefix("data:").strip())
        except ValueError:
            continue
        error = document.get("error") if isinstance(document, dict) else None
        if isinstance(error, dict):
            return str(error.get("message", error))
        if error is not None:
            return str(error)
    return None


def _matches(patterns: Iterable[LinePattern], text: str) -> bool:
    return any(CompiledPattern.of(None, one).groups(text) is not None for one in patterns)


class _RunDiagnosis:
    """The diagnosis of one run."""

    def __init__(
        self,
        run: LogRun,
        dialect: Dialect,
        exit_status: int | None,
        free_mib: Mapping[str, float | None] | None,
    ) -> None:
        self._run = run
        self._types = dialect.log.buffer_types
        self._status = exit_status
        self._log = run.facts.facts()
        self._free_mib = self._log.headroom_mib if free_mib is None else free_mib

    def diagnose(self) -> Diagnosis:
        run, status = self._run, self._status
        failure = run.failures.find()
        if failure is not None:
            return self._diagnose_failure(failure)
        # A second signal while it stops makes the server exit with 1.
        if status and not (run.has_ended and status == 1):
            return self._diagnose_exit(status)
        if status is not None or run.has_ended or self._seems_healthy():
            return self._conclude(Completed(evidence=run.good_line or run.last_line))
        if run.ends_with_error:
            return self._conclude(Crashed(run.stage, run.cause_line))
        return Diagnosis(None, run.stage, run.last_line, self._log)

    def _diagnose_failure(self, failure: LoggedFailure) -> Diagnosis:
        if failure.pattern.may_be_memory:
            device = self._find_full_device(failure.stage)
            if device is not None:
                return self._out_of_pool(failure.stage, failure.evidence, device)
        if "status" in failure.groups:
            status = normalize_status(int(failure.groups["status"], 16))
            return self._diagnose_exit(status, failure.evidence)
        outcome = _make_outcome(failure, self._log, self._types, self._status)
        if_free = failure.advice_if_free if has_enough_free(outcome, self._log) else ()
        is_limit = failure.is_limit or bool(if_free)
        advice = (
            *if_free,
            *failure.advice,
            *advise(outcome, self._log, failure.groups, is_limit=is_limit),
        )
        if failure.pattern.is_any_memory and isinstance(outcome, OutOfMemory):
            buffer = _guess_buffer(failure.stage, "device", self._log)
            on_device = replace(outcome, where="device", buffer=buffer)
            advice = tuple(dict.fromkeys((*advise(on_device, self._log), *advice)))
        return self._conclude(outcome, failure.pattern.reason, advice)

    def _diagnose_exit(self, status: int, line: str | None = None) -> Diagnosis:
        """Diagnose an exit without a message; `line` is one of the system about it."""
        run = self._run
        evidence = line or (
            f"{describe_status(status)} without a message; last line: {run.last_line}"
        )
        cause = classify_exit(status)
        if cause == "memory" and run.has_ended:
            cause = "killed"  # by the program that had stopped it
        if cause == "memory":
            buffer = _guess_buffer(run.stage, "host", self._log)
            outcome: Outcome = OutOfMemory(run.stage, evidence, "host", buffer)
            return self._conclude(outcome, "killed", advise(outcome, self._log))
        if cause in {"killed", "illegal_instruction"}:
            reason = cast("CrashedReason", cause)
            return self._conclude(Crashed(run.stage, evidence, reason, status))
        if cause == "library":
            return self._conclude(Crashed(run.stage, evidence, None, status), None, (_LIBRARY,))
        device = self._find_full_device(run.stage)
        if device is not None:
            return self._out_of_pool(run.stage, evidence, device)
        return self._conclude(Crashed(run.stage, evidence, None, status))

    def _conclude(
        self, outcome: Outcome, reason: str | None = None, advice: tuple[str, ...] = ()
    ) -> Diagnosis:
        reason = reason or getattr(outcome, "reason", None)
        return Diagnosis(outcome, outcome.stage, outcome.evidence, self._log, reason, advice)

    def _seems_healthy(self) -> bool:
        """Return whether the log of a server that may still run shows no problem."""
        return self._run.has_answered or (self._run.is_ready and not self._run.is_busy)

    def _out_of_pool(self, stage: Stage, evidence: str, device: str) -> Diagnosis:
        outcome = OutOfMemory(stage, evidence, "device", "pool", device)
        return self._conclude(outcome, None, advise(outcome, self._log))

    def _find_full_device(self, stage: Stage) -> str | None:
        """Return the device that was almost full while the server computed, if any."""
        known = {name: mib for name, mib in self._free_mib.items() if mib is not None}
        name = min(known, key=lambda device: known[device], default=None)
        is_full = name is not None and known[name] < _TIGHT_MIB
        return name if stage in _COMPUTING and is_full else None


def _make_outcome(
    failure: LoggedFailure, log: ServerLog, types: BufferTypes, exit_status: int | None
) -> Outcome:
    stage, evidence, reason = failure.stage, failure.evidence, failure.pattern.reason
    match failure.kind:
        case "out_of_memory":
            where, device = _locate_failure(failure, log, types)
            buffer = failure.buffer or _guess_buffer(stage, where, log)
            return OutOfMemory(stage, evidence, where, buffer, device, failure.requested_mib)
        case "spilled":
            return Spilled(stage, evidence, _locate_failure(failure, log, types)[1])
        case "rejected":
            return Rejected(stage, evidence, cast("RejectedReason | None", reason))
        case "crashed":
            return Crashed(stage, evidence, cast("CrashedReason | None", reason), exit_status)
        case "timed_out":
            return TimedOut(stage, evidence)
        case "incorrect":
            return Incorrect(stage, evidence)


def _locate_failure(
    failure: LoggedFailure, log: ServerLog, types: BufferTypes
) -> tuple[Where, str | None]:
    """Return the kind of memory that was full, and the device if it is known."""
    devices = {device.name: device.description for device in log.devices}
    where, device = failure.pattern.where, None
    if failure.buffer_type is not None:
        place, device = locate_buffer(failure.buffer_type, types, devices)
        where = where or place
    if where not in (None, "device"):
        return where, None
    if device is None and failure.index is not None:
        device = find_device_by_index(failure.index, devices, types)
        device = device or (failure.device and failure.device.format(index=failure.index))
    elif device is None and len(log.used_devices) == 1:
        device = log.used_devices[0].name
    return "device", device


def _guess_buffer(stage: Stage, where: Where, log: ServerLog) -> Buffer | None:
    """Return the buffer that is usually allocated at a stage."""
    if stage == "load":
        return "weights"
    if stage == "context":
        return "compute" if "kv_mib" in log.values else "kv"
    return "pool" if where == "device" and stage in _COMPUTING else None


def diagnosis_to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as JSON data with all keys."""
    outcome = diagnosis.outcome
    return {
        "kind": diagnosis.kind,
        "where": getattr(outcome, "where", None),
        "buffer": getattr(outcome, "buffer", None),
        "stage": diagnosis.stage,
        "device": getattr(outcome, "device", None),
        "requested_mib": getattr(outcome, "requested_mib", None),
        "reason": diagnosis.reason,
        "evidence": diagnosis.evidence,
        "advice": list(diagnosis.advice),
    }
