"""What came of a server, told by its log and exit status, or by its answer to a request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from autofit.runtime.diagnosis.advice import advise
from autofit.runtime.diagnosis.exit_status import cause_of_death, describe_status
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.dialect.log_patterns import BufferTypes, LinePattern
from autofit.runtime.logs.log_line import CompiledPattern
from autofit.runtime.logs.log_reader import FailureTracker, LoggedFailure, LogReader, LogRun
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

# A server that dies without a word while it computes, on a device with less left than this,
# wanted memory: drivers take some hundred MiB that no line of the log accounts for.
_TIGHT_MIB = 512.0
_COMPUTING: frozenset[Stage] = frozenset({"warmup", "prompt", "generate"})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What came of a launch, and what to do; `outcome` is None where that cannot be told.

    `reason` is the outcome's where it has one, and also says why memory is thought to be
    the cause where no allocation was refused in words (`killed`, `device_lost`). `child` is
    the port of a router's child, empty for a server of its own.
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
        """Whether something went wrong, as far as can be told."""
        return self.kind not in {"completed", "unknown"}


def diagnose(
    lines: Iterable[str],
    dialect: Dialect,
    *,
    exit_status: int | None = None,
    free_mib: Mapping[str, float | None] | None = None,
) -> Diagnosis:
    """Tell what came of a server by its log, read once and in bounded memory.

    Of several runs in a log the last is told, unless only an earlier one failed; of a
    router's children the one that failed. `exit_status` is of the server (or router) itself,
    in the form of `exit_status.normal_status`; None when it is not known, or still runs.
    `free_mib` is the least free memory that was seen by device, where it was watched.
    """
    failed: list[Diagnosis] = []

    def keep(run: LogRun, source: str) -> None:
        told = replace(_Verdict(run, dialect, None, None).diagnosis(), child=source)
        if told.is_failure:
            failed[:] = [told]

    runs = LogReader(dialect.log, dialect.failures, keep).read(lines).runs
    own = runs[""]
    is_only_child = len(runs) == 2 and own.last_number == 0  # noqa: PLR2004 - itself and one
    told = []
    for source, run in runs.items():
        status = own.child_statuses.get(source) if source else exit_status
        if source and is_only_child:
            status = exit_status
        diagnosis = _Verdict(run, dialect, status, free_mib).diagnosis()
        told.append((run.last_number, replace(diagnosis, child=source)))
    told.sort(key=lambda pair: pair[0])
    current = [diagnosis for _, diagnosis in told if diagnosis.is_failure]
    good = [diagnosis for _, diagnosis in told if diagnosis.kind == "completed"]
    rest = [diagnosis for _, diagnosis in told]
    return (current or failed or good or rest)[-1]


def diagnose_answer(status: int, body: str, dialect: Dialect) -> Outcome | None:
    """Tell what an HTTP answer says about the candidate.

    None where it says nothing against it: the answer is good, or the server still loads.
    The server's log usually tells more.
    """
    message = _error_message(body)
    if (status < 400 and message is None) or _matches(dialect.log.harmless, message or ""):  # noqa: PLR2004
        return None
    text = message or body.strip() or f"HTTP {status}"
    tracker = FailureTracker(dialect.failures)
    for number, failure in enumerate(dialect.failures):
        groups = CompiledPattern.of(None, failure).groups(text)
        if groups is not None:
            tracker.see(number, groups, text, "prompt")
    finding = tracker.finding()
    if finding is not None:
        return _outcome(finding, ServerLog(), dialect.log.buffer_types, None)
    if 400 <= status < 500:  # noqa: PLR2004 - the client's fault, in HTTP's words
        return Rejected("prompt", text, "bad_value")
    return Crashed("prompt", text)


def _error_message(body: str) -> str | None:
    """The message of an error answer, also of an event in a stream."""
    for line in body.splitlines() or [body]:
        try:
            document = json.loads(line.removeprefix("data:").strip())
        except ValueError:
            continue
        error = document.get("error") if isinstance(document, dict) else None
        if isinstance(error, dict):
            return str(error.get("message", error))
        if error is not None:
            return str(error)
    return None


def _matches(patterns: Iterable[LinePattern], text: str) -> bool:
    return any(CompiledPattern.of(None, pattern).groups(text) is not None for pattern in patterns)


class _Verdict:
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

    def diagnosis(self) -> Diagnosis:
        finding = self._run.failures.finding()
        if finding is not None:
            return self._failed(finding)
        if self._status is not None and cause_of_death(self._status) and not self._ended_at_will():
            return self._died(self._status)
        if self._status == 0 or self._run.has_ended or self._seems_healthy():
            return self._told(Completed(evidence=self._run.good_line or self._run.last_line))
        return Diagnosis(None, self._run.stage, self._run.last_line, self._log)

    def _failed(self, finding: LoggedFailure) -> Diagnosis:
        if finding.may_be_memory:
            full = self._full_device_while_computing(finding.stage)
            if full is not None:
                return self._out_of_pool(finding.stage, finding.evidence, full)
        outcome = _outcome(finding, self._log, self._types, self._status)
        advice = (*finding.advice, *advise(outcome, self._log, finding.groups))
        return self._told(outcome, finding.reason, advice)

    def _died(self, status: int) -> Diagnosis:
        """The process ended without a word about why."""
        run = self._run
        evidence = f"{describe_status(status)} without a message; last line: {run.last_line}"
        death = cause_of_death(status)
        if death == "memory" and run.has_ended:
            death = "killed"  # by whoever had told it to stop
        if death == "memory":
            buffer = _usual_buffer(run.stage, "host", self._log)
            outcome: Outcome = OutOfMemory(run.stage, evidence, "host", buffer)
            return self._told(outcome, "killed", advise(outcome, self._log))
        if death in {"killed", "illegal_instruction"}:
            return self._told(Crashed(run.stage, evidence, cast("CrashedReason", death), status))
        full = self._full_device_while_computing(run.stage)
        if full is not None:
            return self._out_of_pool(run.stage, evidence, full)
        return self._told(Crashed(run.stage, evidence, None, status))

    def _told(
        self, outcome: Outcome, reason: str | None = None, advice: tuple[str, ...] = ()
    ) -> Diagnosis:
        reason = reason or getattr(outcome, "reason", None)
        return Diagnosis(outcome, outcome.stage, outcome.evidence, self._log, reason, advice)

    def _ended_at_will(self) -> bool:
        # A second signal while stopping makes the server exit with 1.
        return self._run.has_ended and self._status == 1

    def _seems_healthy(self) -> bool:
        """Whether the log of a server that may still run shows no trouble."""
        if self._status is not None:
            return False
        return self._run.has_answered or (self._run.is_ready and not self._run.is_busy)

    def _out_of_pool(self, stage: Stage, evidence: str, device: str) -> Diagnosis:
        outcome = OutOfMemory(stage, evidence, "device", "pool", device)
        return self._told(outcome, None, advise(outcome, self._log))

    def _full_device_while_computing(self, stage: Stage) -> str | None:
        if stage not in _COMPUTING:
            return None
        known = {name: mib for name, mib in self._free_mib.items() if mib is not None}
        name = min(known, key=lambda device: known[device], default=None)
        return name if name is not None and known[name] < _TIGHT_MIB else None


def _outcome(
    finding: LoggedFailure, log: ServerLog, types: BufferTypes, exit_status: int | None
) -> Outcome:
    stage, evidence = finding.stage, finding.evidence
    match finding.kind:
        case "out_of_memory":
            where, device = _place(finding, log, types)
            buffer = finding.buffer or _usual_buffer(stage, where, log)
            return OutOfMemory(stage, evidence, where, buffer, device, finding.requested_mib)
        case "spilled":
            return Spilled(stage, evidence, _place(finding, log, types)[1])
        case "rejected":
            return Rejected(stage, evidence, cast("RejectedReason | None", finding.reason))
        case "crashed":
            reason = cast("CrashedReason | None", finding.reason)
            return Crashed(stage, evidence, reason, exit_status)
        case "timed_out":
            return TimedOut(stage, evidence)
        case "incorrect":
            return Incorrect(stage, evidence)


def _place(finding: LoggedFailure, log: ServerLog, types: BufferTypes) -> tuple[Where, str | None]:
    devices = {device.name: device.description for device in log.devices}
    where, device = finding.where, None
    if finding.buffer_type is not None:
        place, device = locate_buffer(finding.buffer_type, types, devices)
        where = where or place
    where = where or "device"
    if where != "device":
        return where, None
    return where, device or _device(finding, log, types, devices)


def _device(
    finding: LoggedFailure, log: ServerLog, types: BufferTypes, devices: Mapping[str, str]
) -> str | None:
    if finding.index is not None:
        found = find_device_by_index(finding.index, devices, types)
        return found or (finding.device and finding.device.format(index=finding.index))
    used = log.used_devices
    return used[0].name if len(used) == 1 else None


def _usual_buffer(stage: Stage, where: Where, log: ServerLog) -> Buffer | None:
    """What is allocated at a stage, where no line says it."""
    if stage == "load":
        return "weights"
    if stage == "context":
        return "compute" if "kv_mib" in log.values else "kv"
    return "pool" if where == "device" and stage in _COMPUTING else None


def diagnosis_to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as JSON data, every key always there."""
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
