"""A sweep: the entries of a suite are measured, or read from its shards, and judged."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from autofit.errors import Interrupted, UsageError
from autofit.machine.lock import machine_lock
from autofit.model.synth.demo_model import make_demo_model
from autofit.runtime.command.redaction import redact_command
from autofit.sweep.entry_record import NEVER_LAUNCHED, EntryRecord
from autofit.sweep.entry_run import EntryRun
from autofit.sweep.night_folder import NightFolder
from autofit.sweep.shared_night import SharedNight, SharedStudy
from autofit.sweep.suite import DEMO_MODEL, SuiteEntry
from autofit.sweep.sweep_plan import SweepPlan, grant_budget_s, with_model_path
from autofit.text_format import duration

# Nothing can be measured in less time than this.
_LEAST_S = 5.0
_LINE_COLUMNS = 100

# Judges the records of a night, reports the verdicts, and returns the exit code.
Conclude = Callable[[Sequence[EntryRecord], NightFolder], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep, which measures each entry of a plan in processes of its own.

    If `folder` is None, a new one is made below `results/sweeps`. `report` is called with lines
    about the progress. Without `locks_machine` the caller has locked the machine. `command` is
    the command line of the sweep, for hints. With `shared` other runners take entries, too.
    """

    plan: SweepPlan
    folder: Path | None
    resume: bool
    locks_machine: bool
    report: Callable[[str], None]
    command: Sequence[str]
    shared: SharedStudy | None = None

    def run(self, conclude: Conclude) -> int | None:
        """Measure all entries while the machine is locked, and return the exit code.

        The code is None if another runner of a shared night judges it.

        Raises:
            AutofitError: the sweep itself failed.
            Interrupted: the user stopped the sweep. The hint says how to resume it.
        """
        self._refuse_missing_presets()
        suite = self.plan.suite
        try:
            lock = machine_lock(f"of the sweep {suite.name}")
            with lock if self.locks_machine else nullcontext() as set_study:
                storage = self.shared.open(self.report) if self.shared else None
                night = self._open_folder()
                if set_study is not None:
                    set_study(str(night.path))
                count = len(self.plan.entries)
                entries = "1 entry" if count == 1 else f"{count} entries"
                self.report(f"sweep {suite.name}: {entries}, saved in {night.path}")
                if not self.plan.baseline.entries:
                    path = self.plan.baseline_path
                    self.report(
                        f"the baseline {path} does not exist yet; --update-baseline creates it"
                    )
                if storage is None:
                    return conclude(self._run(night), night)
                shared = SharedNight.join(
                    self.plan,
                    night,
                    storage,
                    measure=lambda entry, budget_s: self._run_entry(night, entry, budget_s),
                    report=self.report,
                )
                return shared.run(conclude)
        except KeyboardInterrupt as error:
            line = shlex.join(["autofit", *redact_command(self.command)])
            more = "" if self.resume else " --resume"
            raise Interrupted(
                "stopped", f"all measurements are saved; continue with {line}{more}"
            ) from error

    def _refuse_missing_presets(self) -> None:
        """Refuse entries whose preset file does not exist, because that is no fault of a build.

        Raises:
            UsageError: a file does not exist.
        """
        for entry in self.plan.entries:
            is_file = entry.preset is not None and len(entry.preset.split()) == 1
            if is_file and not Path(str(entry.preset)).exists():
                raise UsageError(
                    f"{self.plan.suite.path}: {entry.name}: there is no preset {entry.preset}",
                    "use the path of a preset, relative to the suite, or a quoted command",
                )

    def _open_folder(self) -> NightFolder:
        ours = self.plan.head
        if self.shared:
            ours = self.shared.head(ours, self.folder, resume=self.resume)
        if not self.resume:
            return NightFolder.create(self.folder, ours, today=date.today())  # noqa: DTZ011
        night = NightFolder.open(self.folder) if self.folder else NightFolder.latest(ours)
        if night is None:
            raise UsageError("there is no such sweep to resume", "leave --resume out to start one")
        theirs = night.head
        if (ours.suite, ours.digest) == (theirs.suite, theirs.digest) and ours != theirs:
            raise UsageError(
                f"the sweep in {night.path} began with other entries: {', '.join(theirs.names)}",
                "use the same --only or --shard as at its start",
            )
        if ours != theirs:
            raise UsageError(
                f"the sweep in {night.path} is of another suite, or the suite has changed since",
                "restore the suite, or start a new sweep without --resume",
            )
        return night

    def _run(self, night: NightFolder) -> list[EntryRecord]:
        entries = self.plan.entries
        records = []
        done = {
            entry.name: record
            for entry in entries
            if (record := night.record(entry.name)) and record.status not in NEVER_LAUNCHED
        }
        for index, entry in enumerate(entries):
            if entry.name in done:
                records.append(done[entry.name])
                continue
            later = [other for other in entries[index + 1 :] if other.name not in done]
            budget_s = grant_budget_s(entry, later, self._left_s(night))
            record = self._run_entry(night, entry, budget_s)
            night.write_record(record)
            records.append(record)
        return records

    def _left_s(self, night: NightFolder) -> float | None:
        if self.plan.suite.budget_s is None:
            return None
        done = (night.record(entry.name) for entry in self.plan.entries)
        return self.plan.suite.budget_s - sum(record.seconds for record in done if record)

    def _run_entry(self, night: NightFolder, entry: SuiteEntry, budget_s: float) -> EntryRecord:
        """Measure an entry, and report its begin and its end."""
        place = f"[{self.plan.entries.index(entry) + 1}/{len(self.plan.entries)}]"
        title = f"{place} {entry.name}"
        need = entry.find_unmet_need()
        if budget_s < min(_LEAST_S, entry.full_budget_s):
            record = self.plan.not_run(entry, "the budget of the whole sweep is used up")
        elif need:
            record = self.plan.missing(entry, need)
        else:
            self.report(f"{title}: {entry.mode} (budget {duration(budget_s)})")
            record = self._measure(night, entry, budget_s, place)
        is_absent = record.status == "missing_hardware"
        status = "not on this machine" if is_absent else record.status.replace("_", " ")
        evidence = f": {record.failure.evidence}" if record.failure else ""
        self.report(f"{title}: {status} after {duration(record.seconds)}{evidence}")
        return record

    def _measure(
        self, night: NightFolder, entry: SuiteEntry, budget_s: float, place: str
    ) -> EntryRecord:
        if entry.model == DEMO_MODEL:
            make_demo_model()
        return EntryRun(
            entry=with_model_path(entry),
            folder=night.entry(entry.name),
            lock=night.lock,
            before=self.plan.before(entry),
            budget_s=budget_s,
            reproduce=self.plan.reproduce(entry),
            report=lambda line: self.report(f"{place} {line}"[:_LINE_COLUMNS]),
        ).run()


def read_shards(plan: SweepPlan, folders: Sequence[Path]) -> list[EntryRecord]:
    """Return the newest record of each entry in the folders of shards.

    Raises:
        UsageError: a folder belongs to another suite.
    """
    found = []
    for path in folders:
        night = NightFolder.open(path)
        if (night.head.suite, night.head.digest) != (plan.head.suite, plan.head.digest):
            raise UsageError(
                f"the sweep in {path} is of another suite, or of another version of it",
                f"its suite is {night.head.suite}",
            )
        found += [record for name in night.head.names if (record := night.record(name))]
    # A lost shard must not count as a night without regressions.
    lost = "none of the folders contains this entry"
    return plan.merge(found, lambda entry: plan.not_run(entry, lost, "failed"))
