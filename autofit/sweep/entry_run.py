"""Runs one entry of a sweep: its commands as processes of their own, under a time limit.

Whatever such a process does, hang or die or fill its memory, is the entry's loss alone. It
ends with the sweep, and what its study holds by then is not launched again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from autofit import __version__
from autofit.errors import AutofitError, Interrupted, MachineInUseError, NothingFitsError
from autofit.machine.host_load import HostWatcher
from autofit.machine.lock import FOLDER_VARIABLE
from autofit.model.placement.layout import SINGLE
from autofit.model.sizes.inventory import read_inventory
from autofit.model.sizes.kv_cache import kv_types
from autofit.process.managed_process import ManagedProcess
from autofit.study.study_folder import Study
from autofit.sweep.entry_record import BoundaryRow, EntryRecord, Failure, Status, Winner
from autofit.sweep.environment_snapshot import EnvironmentSnapshot
from autofit.sweep.measured import Measured, boundary_of, of_remeasure, of_tune
from autofit.sweep.steps import (
    Step,
    boundary_part_s,
    boundary_step,
    first_step,
    kept_step,
)
from autofit.sweep.suite import Entry, task_words
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import OutOfMemory, Spilled
from autofit.trial.parameter_groups import HOST_LAYER_PARAMS

# What a tune needs to end its server and save what it has.
_GRACE_S = 30.0
# A command of a sweep that was killed may take this long to be gone.
_LOCK_LIMIT_S = 60.0
_LOCK_POLL_S = 1.0
_WAIT_S = 1.0
_LEAST_LEFT_S = 5.0

_MEMORY_FAILURES = {OutOfMemory.kind, Spilled.kind}

Ended = Literal["done", "failed", "timed_out"]


@dataclass(frozen=True, slots=True)
class _StepEnd:
    """How a command ended: its exit code, and the error it told of."""

    ended: Ended
    code: int
    error: Mapping[str, Any] = field(default_factory=dict)
    tail: str = ""

    @property
    def failure(self) -> Failure:
        """The failure of the entry where this is one."""
        if self.ended == "timed_out":
            return Failure("timed_out", self.tail)
        if self.code < 0:
            return Failure("crashed", f"the program that measured it died of signal {-self.code}")
        kind = str(self.error.get("kind", "failed"))
        told = str(self.error.get("message") or self.tail or f"exit status {self.code}")
        return Failure(kind, told, reason=self.error.get("reason"))


@dataclass(slots=True, kw_only=True)
class EntryRun:
    """One entry; `run` returns what it measured.

    `folder` is the entry's, `lock` where its commands keep their lock; `kept` is what a
    baseline holds of it. `budget_s` is for measuring; `reproduce` is a shell command.
    """

    entry: Entry
    folder: Path
    lock: Path
    kept: EntryRecord | None
    budget_s: float
    reproduce: str
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    _deadline: float = 0.0
    _limit_s: float = 0.0

    def run(self) -> EntryRecord:
        """Run the commands of the entry one after another.

        Raises:
            AutofitError: the sweep itself cannot go on.
            KeyboardInterrupt: the user stopped it; nothing is left running.
        """
        began_s, began_at = self.clock(), self.wall_clock()
        watcher = HostWatcher()
        self._limit_s = self.entry.time_limit_s(self.budget_s)
        self._deadline = began_s + self._limit_s
        notes = tuple(self._without_the_absent())
        step = first_step(self.entry, self.kept, self.budget_s)
        measured = self._measure(step)
        measured = replace(measured, notes=(*notes, *measured.notes))
        study = self._study(step)
        surroundings = EnvironmentSnapshot()
        if study is not None:
            around = EnvironmentSnapshot.of(study.header.environment, watcher.state())
            surroundings = replace(around, task=task_words(self.entry, study.header.workload))
        return EntryRecord(
            name=self.entry.name,
            mode=self.entry.mode,
            date=datetime.fromtimestamp(began_at, UTC).isoformat(timespec="seconds"),
            autofit_version=__version__,
            is_sparse=self._is_sparse(),
            environment=surroundings,
            seconds=round(self.clock() - began_s, 1),
            reproduce=self.reproduce,
            **{field.name: getattr(measured, field.name) for field in fields(Measured)},
        )

    def _without_the_absent(self) -> Iterator[str]:
        """To remeasure without the old runtime where that is no longer here."""
        against = self.entry.against
        if self.entry.mode == "remeasure" and against and "/" in against:
            if Path(against).exists():
                return
            self.entry = replace(self.entry, against=None)
            yield f"the old runtime {against} is not here: it was not measured again"

    def _is_sparse(self) -> bool:
        try:
            return read_inventory(Path(self.entry.model)).is_moe
        except AutofitError:
            return False

    def _measure(self, step: Step) -> Measured:
        measured = self._measured(step, self._run(step, is_first=True))
        if measured.status == "ok":
            measured = self._with_kept(measured, step)
        fits_no_more = measured.failure is not None and measured.failure.kind in _MEMORY_FAILURES
        if (
            self.entry.boundary
            and self.entry.mode != "compare"
            and (measured.status == "ok" or fits_no_more)
        ):
            measured = self._with_boundary(measured)
        return measured

    def _measured(self, step: Step, end: _StepEnd) -> Measured:
        """What a command measured, or why it did not."""
        if end.code == AutofitError.exit_code and end.ended == "failed":
            # No fault of the runtime's, such as a full disk.
            return Measured(status="not_run", failure=replace(end.failure, kind="failed"))
        if end.ended == "failed" and end.code != NothingFitsError.exit_code:
            return Measured(status=self._status(end), failure=end.failure)
        study = self._study(step)
        if end.ended == "timed_out" or study is None or study.result is None:
            status: Status = "timed_out" if end.ended == "timed_out" else "failed"
            return Measured(status=status, failure=end.failure)
        return of_tune(study) if step.name == "tune" else of_remeasure(study)

    def _status(self, end: _StepEnd) -> Status:
        reason = end.error.get("reason")
        if reason == "missing":
            return "missing_hardware"
        return "rejected" if reason == "unsupported" else "failed"

    def _with_kept(self, measured: Measured, step: Step) -> Measured:
        """Beside a tune, whether what it found the last time still runs."""
        kept = self.kept.winner if self.kept else None
        if step.name != "tune" or kept is None or self.kept is None:
            return measured
        if measured.winner is not None and measured.winner.digest == kept.digest:
            return measured
        again = kept_step(self.entry, self.kept, self.budget_s)
        end = self._run(again)
        found = self._measured(again, end)
        if found.failure is None:
            return measured
        what = "the kept settings no longer run; tonight's tune has found others"
        return replace(
            measured,
            status=found.status,
            failure=found.failure,
            notes=(*measured.notes, what),
        )

    def _with_boundary(self, measured: Measured) -> Measured:
        """The fit boundary by launches: that of the baseline, else of tonight's winner."""
        rows = (self.kept.boundary if self.kept else ()) or measured.boundary
        winner = (self.kept.winner if self.kept else None) or measured.winner
        if winner is None:
            return measured
        rows = rows or tuple(self._boundary_on_one_device(winner))
        if not rows:
            return measured
        step = boundary_step(self.entry, rows, winner, self._left_for_boundary_s())
        end = self._run(step)
        study = self._study(step)
        found = boundary_of(study) if study is not None and end.ended == "done" else ()
        notes = measured.notes
        if study is not None and found and (study.result or {}).get("ended_by") == "budget":
            # What was left open would be kept in place of what an earlier night has proven.
            proven = tuple(row for row in found if row.proven)
            what = f"{len(found) - len(proven)} of {len(found)} fit boundaries"
            notes = (*notes, f"the time was up before {what} were found")
            found = proven
        elif not found:
            notes = (*notes, f"the fit boundary was not found: {end.failure.evidence}")
        return replace(measured, boundary=found, notes=notes)

    def _left_for_boundary_s(self) -> float:
        """Seconds for the fit boundary: up to the time-out, or the entry's part of the night."""
        now_s = self.clock()
        until_timed_out_s = self._deadline - _LEAST_LEFT_S - now_s
        kept_s = boundary_part_s(self.entry, self.budget_s)
        if not kept_s:
            return until_timed_out_s
        granted_until_s = self._deadline - self._limit_s + self.budget_s
        return min(until_timed_out_s, max(kept_s, granted_until_s - now_s))

    def _boundary_on_one_device(self, winner: Winner) -> Iterator[BoundaryRow]:
        """What to look for where nothing is known of the layout but that it is one device."""
        study = self._study(Step("remeasure", ()))
        devices = study.header.environment.devices if study else ()
        names = [line.partition(":")[0] for line in devices]
        named = str(winner.params.get("devices", ",".join(names))).split(",")
        if len(named) == 1 and named[0] and set(HOST_LAYER_PARAMS) & set(winner.params):
            kind, _ = kv_types(Candidate(winner.params))
            yield BoundaryRow(f"{SINGLE}{named[0]}", kind, None, None)

    def _study(self, step: Step) -> Study | None:
        try:
            return Study.open(self.folder / step.name)
        except AutofitError:
            return None

    def _run(self, step: Step, *, is_first: bool = False) -> _StepEnd:
        """Run a command to its end, or to that of the entry's time."""
        if self._concluded(step):
            return _StepEnd("done", 0)
        if not is_first and self.clock() > self._deadline - _LEAST_LEFT_S:
            return self._timed_out(step)
        waited_until = self.clock() + _LOCK_LIMIT_S
        while True:
            end = self._run_once(step)
            # One of a sweep that was killed may still be on its way out.
            is_held = end.code == MachineInUseError.exit_code
            if not is_held or self.clock() > waited_until:
                return end
            time.sleep(_LOCK_POLL_S)

    def _concluded(self, step: Step) -> bool:
        study = self._study(step)
        return study is not None and study.result is not None

    def _run_once(self, step: Step) -> _StepEnd:
        is_late = False
        try:
            with ManagedProcess.start(
                step.argv(self.folder),
                env={**os.environ, FOLDER_VARIABLE: str(self.lock)},
                log_path=self._log(step),
                grace_s=_GRACE_S,
            ) as process:
                code = process.wait(_WAIT_S)
                while code is None and self.clock() < self._deadline:
                    code = process.wait(_WAIT_S)
                is_late = code is None
        except AutofitError:
            # What cannot even be killed is the entry's loss, too.
            if not is_late:
                raise
        if is_late or code is None:
            return self._timed_out(step)
        if code == Interrupted.exit_code:
            raise KeyboardInterrupt
        if code == 0:
            return _StepEnd("done", 0)
        tail = process.tail()
        return _StepEnd("failed", code, _told_error(tail), _last_words(tail))

    def _log(self, step: Step) -> Path:
        return self.folder / f"{step.name}.log"

    def _timed_out(self, step: Step) -> _StepEnd:
        what = f"it took longer than {self._limit_s:.0f} s; see {self._log(step)}"
        return _StepEnd("timed_out", 0, tail=what)


def _told_error(lines: list[str]) -> Mapping[str, Any]:
    """The error that a command told of as JSON, empty where it did not."""
    for line in reversed(lines):
        if line.startswith('{"error"'):
            try:
                error = json.loads(line)["error"]
            except (ValueError, KeyError):
                continue
            return dict(error)
    return {}


def _last_words(lines: list[str]) -> str:
    """What a command said as the last thing, its own message rather than a hint."""
    told = [line.removeprefix("autofit: ") for line in lines if line.startswith("autofit: ")]
    return (told or lines or [""])[-1]
