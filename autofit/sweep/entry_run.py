"""The measurement of one entry of a sweep in processes of its own, with a time limit.

If such a process hangs, dies or fills the memory, only its entry is lost. It ends together with
the sweep, and a resumed sweep does not repeat the launches that are in its study.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autofit import __version__
from autofit.errors import AutofitError, Interrupted, MachineInUseError, NothingFitsError
from autofit.input_files import parse_json
from autofit.machine.host_load import HostWatcher
from autofit.machine.lock import FOLDER_VARIABLE
from autofit.model.placement.layout import SINGLE
from autofit.model.sizes.inventory import read_inventory
from autofit.model.sizes.kv_cache import kv_types
from autofit.process.managed_process import ManagedProcess
from autofit.study.study_folder import Study
from autofit.sweep.entry_command import (
    EntryCommand,
    boundary_budget_s,
    boundary_command,
    measuring_command,
    recheck_command,
)
from autofit.sweep.entry_record import (
    BoundaryRow,
    EntryFailure,
    EntryRecord,
    EnvironmentSnapshot,
    MeasuredSettings,
    Status,
)
from autofit.sweep.entry_studies import read_boundaries, with_remeasurement, with_tune
from autofit.sweep.suite import SuiteEntry
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import OutOfMemory, Spilled
from autofit.trial.parameter_groups import HOST_LAYER_PARAMS

# A stopped tune needs this long to end its server and save its measurements.
_GRACE_S = 30.0
# If a sweep was killed, its last command needs this long to release the lock.
_LOCK_LIMIT_S = 60.0
_LOCK_POLL_S = 1.0
_WAIT_S = 1.0
_LEAST_LEFT_S = 5.0

# The line of a launch in the output of a command.
_LAUNCH = re.compile(r"#(\d+) ")
_MEMORY_FAILURES = {OutOfMemory.kind, Spilled.kind}


@dataclass(frozen=True, slots=True)
class _CommandEnd:
    """The end of a command: its exit code, the error that it reported, and its last message.

    `is_late` is true if it was stopped at the entry's deadline.
    """

    code: int = 0
    error: Mapping[str, Any] = field(default_factory=dict)
    last_message: str = ""
    is_late: bool = False

    @property
    def is_success(self) -> bool:
        """True if the command completed its task."""
        return self.code == 0 and not self.is_late

    @property
    def status(self) -> Status:
        """The status of the entry, if the command measured nothing."""
        if self.is_late:
            return "timed_out"
        if self.code == AutofitError.exit_code:
            return "not_run"  # not the fault of the runtime, such as a full disk
        statuses: Mapping[object, Status] = {
            "missing": "missing_hardware",
            "unsupported": "rejected",
        }
        return statuses.get(self.error.get("reason"), "failed")

    @property
    def failure(self) -> EntryFailure:
        """The failure of the entry, if the command measured nothing."""
        if self.is_late:
            return EntryFailure("timed_out", self.last_message)
        if self.code < 0:
            return EntryFailure("crashed", f"signal {-self.code} ended the measuring process")
        kind = str(self.error.get("kind", "failed"))
        if self.code == AutofitError.exit_code:
            kind = "failed"
        evidence = str(
            self.error.get("message") or self.last_message or f"exit status {self.code}"
        )
        return EntryFailure(kind, evidence, reason=self.error.get("reason"))


@dataclass(slots=True, kw_only=True)
class EntryRun:
    """A run of one entry. `run` measures the entry and returns its record.

    Attributes:
        folder: the entry's folder.
        lock: the folder of the lock that its commands take.
        before: the entry's record in the baseline.
        budget_s: the time for measuring.
        reproduce: a shell command.
        report: called with the line of each launch that ends.
    """

    entry: SuiteEntry
    folder: Path
    lock: Path
    before: EntryRecord | None
    budget_s: float
    reproduce: str
    report: Callable[[str], None] = lambda _: None
    _limit_s: float = 0.0
    _deadline: float = 0.0

    def run(self) -> EntryRecord:
        """Run the commands of the entry one after another, and return its record.

        Raises:
            AutofitError: the sweep itself cannot continue.
            KeyboardInterrupt: the user stopped the sweep. No process is left.
        """
        began_s, watcher = time.monotonic(), HostWatcher()
        self._limit_s = self.entry.time_limit_s(self.budget_s)
        self._deadline = began_s + self._limit_s
        record = EntryRecord(
            name=self.entry.name,
            mode=self.entry.mode,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            autofit_version=__version__,
            is_sparse=self._is_sparse(),
            reproduce=self.reproduce,
        )
        notes = self._leave_out_missing_runtime()
        command = measuring_command(self.entry, self.before, self.budget_s)
        record = self._measure(record, command)
        environment = EnvironmentSnapshot()
        study = self._study(command)
        if study is not None:
            task = self.entry.describe_task(study.header.workload)
            environment = EnvironmentSnapshot.of(study.header.environment, watcher.state(), task)
        return replace(
            record,
            environment=environment,
            seconds=round(time.monotonic() - began_s, 1),
            notes=(*notes, *record.notes),
        )

    def _leave_out_missing_runtime(self) -> tuple[str, ...]:
        """Remove the old runtime from the entry if it no longer exists, and return notes."""
        against = self.entry.against
        is_path = against is not None and "/" in against
        if self.entry.mode != "remeasure" or not is_path or Path(str(against)).exists():
            return ()
        self.entry = replace(self.entry, against=None)
        return (f"the old runtime {against} was not measured, because it does not exist",)

    def _is_sparse(self) -> bool:
        try:
            return read_inventory(Path(self.entry.model)).is_moe
        except AutofitError:
            return False

    def _measure(self, record: EntryRecord, command: EntryCommand) -> EntryRecord:
        record = self._read(record, command, self._run(command, is_first=True))
        if record.status == "ok" and command.name == "tune":
            record = self._recheck_baseline(record)
        does_not_fit = record.failure is not None and record.failure.kind in _MEMORY_FAILURES
        if (
            self.entry.boundary
            and self.entry.mode != "compare"
            and (record.status == "ok" or does_not_fit)
        ):
            record = self._find_boundary(record)
        return record

    def _read(self, record: EntryRecord, command: EntryCommand, end: _CommandEnd) -> EntryRecord:
        """Return the record with the measurements of a command, or with its failure."""
        study = self._study(command)
        can_have_result = end.is_success or end.code == NothingFitsError.exit_code
        if can_have_result and not end.is_late and study is not None and study.result is not None:
            return (with_tune if command.name == "tune" else with_remeasurement)(record, study)
        return replace(record, status=end.status, failure=end.failure)

    def _recheck_baseline(self, record: EntryRecord) -> EntryRecord:
        """Check that the baseline's winner still runs, if the tune has found another one."""
        before = self.before.winner if self.before else None
        is_same = before and record.winner and record.winner.digest == before.digest
        if self.before is None or before is None or is_same:
            return record
        command = recheck_command(self.entry, self.before, self.budget_s)
        found = self._read(record, command, self._run(command))
        if found.failure is None:
            return record
        note = "the baseline's settings no longer run; tonight's tune has found other settings"
        return replace(
            record, status=found.status, failure=found.failure, notes=(*record.notes, note)
        )

    def _find_boundary(self, record: EntryRecord) -> EntryRecord:
        """Find a fit boundary by launches: the baseline's, or else the winner's."""
        rows = (self.before.boundary if self.before else ()) or record.boundary
        winner = (self.before.winner if self.before else None) or record.winner
        if winner is None:
            return record
        rows = rows or tuple(self._boundary_on_one_device(winner))
        if not rows:
            return record
        command = boundary_command(self.entry, rows, winner, self._left_for_boundary_s())
        end = self._run(command)
        study = self._study(command)
        found = read_boundaries(study) if study is not None and end.is_success else ()
        notes = record.notes
        if study is not None and found and (study.result or {}).get("ended_by") == "budget":
            # A boundary without proof must not replace one that an earlier night has proven.
            proven = tuple(row for row in found if row.proven)
            open_count = f"{len(found) - len(proven)} of {len(found)} fit boundaries"
            notes = (*notes, f"budget used up before {open_count} were found")
            found = proven
        elif not found:
            notes = (*notes, f"the fit boundary was not found: {end.failure.evidence}")
        return replace(record, boundary=found, notes=notes)

    def _left_for_boundary_s(self) -> float:
        """Return the seconds for the fit boundary: until the time-out, or the entry's share."""
        now_s = time.monotonic()
        until_time_out_s = self._deadline - _LEAST_LEFT_S - now_s
        reserved_s = boundary_budget_s(self.entry, self.budget_s)
        if not reserved_s:
            return until_time_out_s
        share_ends_s = self._deadline - self._limit_s + self.budget_s
        return min(until_time_out_s, max(reserved_s, share_ends_s - now_s))

    def _boundary_on_one_device(self, winner: MeasuredSettings) -> Iterator[BoundaryRow]:
        """Yield the row to search if the layout is only known to have a single device."""
        study = self._study(EntryCommand("remeasure", ()))
        devices = study.header.environment.devices if study else ()
        names = [line.partition(":")[0] for line in devices]
        used = str(winner.params.get("devices", ",".join(names))).split(",")
        if len(used) == 1 and used[0] and set(HOST_LAYER_PARAMS) & set(winner.params):
            kind, _ = kv_types(Candidate(winner.params))
            yield BoundaryRow(f"{SINGLE}{used[0]}", kind, None, None)

    def _study(self, command: EntryCommand) -> Study | None:
        try:
            return Study.open(self.folder / command.name)
        except AutofitError:
            return None

    def _run(self, command: EntryCommand, *, is_first: bool = False) -> _CommandEnd:
        """Run a command until it ends or the entry's deadline, unless it already has a result."""
        study = self._study(command)
        if study is not None and study.result is not None:
            return _CommandEnd()
        if not is_first and time.monotonic() > self._deadline - _LEAST_LEFT_S:
            return self._time_out(command)
        lock_deadline = time.monotonic() + _LOCK_LIMIT_S
        while True:
            end = self._run_once(command)
            # If an earlier sweep was killed, its command may still be running.
            is_locked = end.code == MachineInUseError.exit_code
            if not is_locked or time.monotonic() > lock_deadline:
                return end
            time.sleep(_LOCK_POLL_S)

    def _run_once(self, command: EntryCommand) -> _CommandEnd:
        is_late = False
        try:
            with ManagedProcess.start(
                command.argv(self.folder),
                env={**os.environ, FOLDER_VARIABLE: str(self.lock)},
                log_path=self._log(command),
                grace_s=_GRACE_S,
            ) as process:
                last, code = 0, process.wait(_WAIT_S)
                while code is None and time.monotonic() < self._deadline:
                    last = self._report_launches(process.tail(), last)
                    code = process.wait(_WAIT_S)
                self._report_launches(process.tail(), last)
                is_late = code is None
        except AutofitError:
            # If a process cannot be killed, only its entry is lost, too.
            if not is_late:
                raise
        if is_late or code is None:
            return self._time_out(command)
        if code == Interrupted.exit_code:
            raise KeyboardInterrupt
        if code == 0:
            return _CommandEnd()
        lines = process.tail()
        return _CommandEnd(code, _reported_error(lines), _last_message(lines))

    def _report_launches(self, lines: Sequence[str], last: int) -> int:
        """Report the launches after the one with number `last`, and return the new last."""
        for line in lines:
            number = _LAUNCH.match(line)
            if number and int(number[1]) > last:
                last = int(number[1])
                self.report(line)
        return last

    def _log(self, command: EntryCommand) -> Path:
        return self.folder / f"{command.name}.log"

    def _time_out(self, command: EntryCommand) -> _CommandEnd:
        text = f"it took longer than {self._limit_s:.0f} s; see {self._log(command)}"
        return _CommandEnd(last_message=text, is_late=True)


def _reported_error(lines: list[str]) -> Mapping[str, Any]:
    """Return the error that a command printed as JSON, or an empty dict without one."""
    for line in reversed(lines):
        if line.startswith('{"error"'):
            try:
                return dict(parse_json(line)["error"])
            except (ValueError, KeyError, TypeError):
                continue
    return {}


def _last_message(lines: list[str]) -> str:
    """Return the last message of a command, if possible one that is no hint."""
    messages = [line.removeprefix("autofit: ") for line in lines if line.startswith("autofit: ")]
    return (messages or lines or [""])[-1]
