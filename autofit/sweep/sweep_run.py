"""A sweep: the entries of a suite are measured, or read from its shards, and judged."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from autofit import __version__, yaml_files
from autofit.errors import Interrupted, UsageError
from autofit.machine.lock import machine_lock
from autofit.model.synth.demo_model import demo_model_path, make_demo_model
from autofit.sweep.baseline_file import Baseline
from autofit.sweep.entry_command import measuring_command
from autofit.sweep.entry_record import NEVER_LAUNCHED, EntryFailure, EntryRecord
from autofit.sweep.entry_run import EntryRun
from autofit.sweep.judge import judge_entry
from autofit.sweep.night_folder import NightFolder, NightHead
from autofit.sweep.suite import DEMO_MODEL, Suite, SuiteEntry, read_suite
from autofit.sweep.verdict import EntryVerdict, Thresholds, sweep_document
from autofit.text_format import duration

# Nothing can be measured in less time than this.
_LEAST_S = 5.0
_LINE_COLUMNS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The plan of a sweep: the suite, the chosen entries and the baseline.

    If the file `baseline_path` does not exist yet, the baseline is empty.
    """

    suite: Suite
    entries: tuple[SuiteEntry, ...]
    head: NightHead
    baseline: Baseline
    baseline_path: Path

    @classmethod
    def read(
        cls,
        suite_name: str,
        *,
        only: tuple[str, ...] = (),
        shard: tuple[int, int] | None = None,
        baseline: Path | None = None,
        updates_baseline: bool = False,
    ) -> SweepPlan:
        """Read suite and baseline.

        Raises:
            UsageError: one of them is faulty or does not exist, or the baseline must be updated
                but cannot be written.
        """
        path = yaml_files.find("suite", suite_name)
        suite = read_suite(yaml_files.read_yaml(path), path)
        entries = suite.select(only, shard)
        if not entries:
            raise UsageError("this shard has no entries", f"{path} has {len(suite.entries)}")
        baseline_path = baseline or _default_baseline(suite)
        if updates_baseline:
            _require_writable(baseline_path)
        is_new = not baseline_path.exists() and (baseline is None or updates_baseline)
        return cls(
            suite=suite,
            entries=entries,
            head=NightHead.of(suite, only, shard),
            baseline=Baseline() if is_new else Baseline.read(baseline_path),
            baseline_path=baseline_path,
        )

    def commands(self) -> Iterator[tuple[str, str]]:
        """Yield the purpose and the first command of each entry."""
        left_s = self.suite.budget_s
        for index, entry in enumerate(self.entries):
            budget_s = grant_budget_s(entry, self.entries[index + 1 :], left_s)
            left_s = None if left_s is None else left_s - budget_s
            command = measuring_command(_with_model_path(entry), self.before(entry), budget_s)
            limit = duration(entry.time_limit_s(budget_s))
            about = f"{entry.name}: {entry.mode}, {duration(budget_s)}, ended after {limit}"
            folder = Path("results") / "sweeps" / "..." / "entries" / entry.name
            yield about, command.shell_line(folder)

    def before(self, entry: SuiteEntry) -> EntryRecord | None:
        """Return the record of an entry in the baseline, or None if there is none."""
        found = self.baseline.entries.get(entry.name)
        return found.record if found else None

    def judge(self, records: Sequence[EntryRecord]) -> list[EntryVerdict]:
        """Compare records with the baseline."""
        limits = self._thresholds()
        return [
            judge_entry(self.baseline.entries.get(record.name), record, limits[record.name])
            for record in records
        ]

    def document(
        self,
        records: Sequence[EntryRecord],
        verdicts: Sequence[EntryVerdict],
        folder: NightFolder | None,
    ) -> dict[str, Any]:
        """Return the document that `sweep --json` prints."""
        return {
            "suite": str(self.suite.path),
            "folder": str(folder.path) if folder else None,
            **sweep_document(verdicts),
            "broken": self._broken(records),
        }

    def update_baseline(self, records: Sequence[EntryRecord]) -> None:
        """Write the baseline with the records of this night. A link stays a link."""
        updated = self.baseline.updated(records, self._thresholds())
        updated.write(Path(os.path.realpath(self.baseline_path)))

    def reproduce(self, entry: SuiteEntry) -> str:
        """Return the command that measures only one entry."""
        words = ["autofit", "sweep", str(self.suite.path.absolute()), "--only", entry.name]
        return shlex.join([*words, "--baseline", str(self.baseline_path)])

    def not_run(self, entry: SuiteEntry, reason: str, kind: str = "not_run") -> EntryRecord:
        """Return the record of an entry that was not measured."""
        return EntryRecord(
            name=entry.name,
            mode=entry.mode,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            autofit_version=__version__,
            status="not_run",
            failure=EntryFailure(kind, reason),
            reproduce=self.reproduce(entry),
        )

    def _thresholds(self) -> dict[str, Thresholds]:
        return {entry.name: entry.thresholds for entry in self.entries}

    def _broken(self, records: Sequence[EntryRecord]) -> list[str]:
        """Return the entries that the sweep should have measured, but failed to measure."""
        must_run = {entry.name for entry in self.entries if entry.missing == "fail"}
        return [
            record.name
            for record in records
            if (record.status == "missing_hardware" and record.name in must_run)
            or (record.status == "not_run" and record.failure and record.failure.kind == "failed")
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep, which measures each entry of a plan in processes of its own.

    If `folder` is None, a new one is made below `results/sweeps`. `report` is called with lines
    about the progress. Without `locks_machine` the caller has locked the machine. `command` is
    the command line of the sweep, for hints.
    """

    plan: SweepPlan
    folder: Path | None
    resume: bool
    locks_machine: bool
    report: Callable[[str], None]
    command: Sequence[str]

    def measure(self) -> tuple[list[EntryRecord], NightFolder]:
        """Measure all entries while the machine is locked.

        Raises:
            AutofitError: the sweep itself failed.
            Interrupted: the user stopped the sweep. The hint says how to resume it.
        """
        self._refuse_missing_presets()
        suite = self.plan.suite
        try:
            lock = machine_lock(f"of the sweep {suite.name}")
            with lock if self.locks_machine else nullcontext() as set_study:
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
                return self._run(night), night
        except KeyboardInterrupt as error:
            line = shlex.join(["autofit", *self.command])
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
            left_s = self._left_s(night)
            later = [other for other in entries[index + 1 :] if other.name not in done]
            budget_s = grant_budget_s(entry, later, left_s)
            place = f"[{index + 1}/{len(entries)}]"
            title = f"{place} {entry.name}"
            if left_s is not None and budget_s < min(_LEAST_S, entry.full_budget_s):
                record = self.plan.not_run(entry, "the budget of the whole sweep is used up")
            else:
                self.report(f"{title}: {entry.mode} (budget {duration(budget_s)})")
                record = self._run_entry(night, entry, budget_s, place)
            night.write_record(record)
            is_absent = record.status == "missing_hardware"
            status = "not on this machine" if is_absent else record.status.replace("_", " ")
            evidence = f": {record.failure.evidence}" if record.failure else ""
            self.report(f"{title}: {status} after {duration(record.seconds)}{evidence}")
            records.append(record)
        return records

    def _left_s(self, night: NightFolder) -> float | None:
        if self.plan.suite.budget_s is None:
            return None
        done = (night.record(entry.name) for entry in self.plan.entries)
        return self.plan.suite.budget_s - sum(record.seconds for record in done if record)

    def _run_entry(
        self, night: NightFolder, entry: SuiteEntry, budget_s: float, place: str
    ) -> EntryRecord:
        if entry.model == DEMO_MODEL:
            make_demo_model()
        return EntryRun(
            entry=_with_model_path(entry),
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
    found: dict[str, EntryRecord] = {}
    for path in folders:
        night = NightFolder.open(path)
        if (night.head.suite, night.head.digest) != (plan.head.suite, plan.head.digest):
            raise UsageError(
                f"the sweep in {path} is of another suite, or of another version of it",
                f"its suite is {night.head.suite}",
            )
        for name in night.head.names:
            record = night.record(name)
            if record and (name not in found or found[name].date < record.date):
                found[name] = record
    # A lost shard must not count as a night without regressions.
    lost = "none of the folders contains this entry"
    return [found.get(entry.name) or plan.not_run(entry, lost, "failed") for entry in plan.entries]


def grant_budget_s(entry: SuiteEntry, later: Sequence[SuiteEntry], left_s: float | None) -> float:
    """Return the seconds that an entry may use of those left for it and all later entries.

    If they need more than is left, each gets an equal share. An entry that needs less than its
    share leaves the rest to the others.
    """
    if left_s is None:
        return entry.full_budget_s
    rest_s = max(0.0, left_s)
    budgets = sorted(one.full_budget_s for one in (entry, *later))
    for index, full_s in enumerate(budgets):
        share_s = rest_s / (len(budgets) - index)
        if full_s > share_s:
            return min(entry.full_budget_s, share_s)
        rest_s -= full_s
    return entry.full_budget_s


def _default_baseline(suite: Suite) -> Path:
    """Return the path of the suite's baseline, in the working directory for a shipped suite."""
    is_bundled = suite.path.absolute().is_relative_to(yaml_files.bundled_root())
    is_here = suite.path.absolute().is_relative_to(Path.cwd())
    return Path.cwd() / suite.baseline.name if is_bundled and not is_here else suite.baseline


def _require_writable(path: Path) -> None:
    """Refuse a baseline path that cannot be written, before a night is spent on it.

    Raises:
        OSError: the system does not accept the path.
    """
    with suppress(FileNotFoundError):
        path.stat()
    folder = Path(os.path.realpath(path)).parent
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(existing, os.W_OK):
        hint = "make it writable, or use another file with `--baseline FILE`"
        raise UsageError(f"the baseline cannot be written to {folder}: no permission", hint)


def _with_model_path(entry: SuiteEntry) -> SuiteEntry:
    return replace(entry, model=str(demo_model_path())) if entry.model == DEMO_MODEL else entry
