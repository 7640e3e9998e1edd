"""One sweep from the command line: suite, baseline, lock, entries in turn, and the reports."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from autofit import __version__, yaml_files
from autofit.cli.commands.check import known_parameters, require_small_file
from autofit.cli.commands.demo import demo_model, demo_model_path
from autofit.cli.options.path_errors import resolved
from autofit.cli.suite_check import checked_suite
from autofit.cli.sweep_output import Outputs, tell, tell_verdicts
from autofit.errors import Interrupted, UsageError
from autofit.machine.lock import machine_lock
from autofit.sweep.baseline_file import Baseline
from autofit.sweep.entry_record import EntryRecord, Failure
from autofit.sweep.entry_run import EntryRun
from autofit.sweep.judge import judge
from autofit.sweep.night_folder import NightFolder, NightHead
from autofit.sweep.steps import first_step
from autofit.sweep.suite import DEMO_MODEL, Entry, Suite, granted_s
from autofit.sweep.sweep_document import sweep_document
from autofit.sweep.thresholds import Thresholds
from autofit.text_format import duration

# With less time than this nothing can be measured.
_LEAST_S = 5.0
# What costs no launch to try again, when a sweep is gone on with.
_NEVER_LAUNCHED = {"not_run", "missing_hardware"}


@dataclass(slots=True, kw_only=True)
class Sweep:
    """A sweep that is about to run, or whose shards are to be merged."""

    suite: Suite
    entries: tuple[Entry, ...]
    head: NightHead
    baseline: Baseline
    baseline_path: Path
    outputs: Outputs
    folder: Path | None
    resume: bool
    merged: tuple[Path, ...]
    words: Sequence[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        name: str,
        *,
        only: tuple[str, ...],
        shard: tuple[int, int] | None,
        baseline: Path | None,
        outputs: Outputs,
        **more: Any,  # noqa: ANN401 - the other fields
    ) -> Sweep:
        """Read suite and baseline.

        Raises:
            UsageError: one of them is faulty or not there.
        """
        path = yaml_files.find("suite", name)
        require_small_file(path)
        outputs.check()
        suite = checked_suite(yaml_files.read_yaml(path), path, known_parameters)
        entries = suite.chosen(only, shard)
        if not entries:
            raise UsageError("this shard has no entry", f"{path} has {len(suite.entries)}")
        kept_in = baseline or _kept_in(suite)
        if outputs.updates_baseline:
            _require_writable(resolved(kept_in).parent)
        is_new = not kept_in.exists() and (baseline is None or outputs.updates_baseline)
        return cls(
            suite=suite,
            entries=entries,
            head=NightHead.of(suite, only, shard),
            baseline=Baseline() if is_new else Baseline.read(kept_in),
            baseline_path=kept_in,
            outputs=outputs,
            **more,
        )

    def commands(self) -> Iterator[tuple[str, str]]:
        """What would be run first for each entry, and what for."""
        left_s = self.suite.budget_s
        for place, entry in enumerate(self.entries):
            budget_s = granted_s(entry, self.entries[place + 1 :], left_s)
            left_s = None if left_s is None else left_s - budget_s
            known = replace(entry, model=str(_model_path(entry)))
            kept = self.baseline.entry(entry.name)
            step = first_step(known, kept.record if kept else None, budget_s)
            about = f"{entry.name}: {entry.mode}, {duration(budget_s)}"
            limit = duration(entry.time_limit_s(budget_s))
            where = Path("results") / "sweeps" / "..." / "entries" / entry.name
            yield f"{about}, ended after {limit}", step.line(where)

    def execute(self) -> dict[str, Any]:
        """Run the entries, or read what shards measured; judge, and write the reports.

        Raises:
            AutofitError: the sweep itself failed.
            Interrupted: the user stopped it; it can go on.
        """
        if self.merged:
            records = self._read_merged()
            return self._conclude(records, None)
        self._refuse_absent_presets()
        with machine_lock(f"of the sweep {self.suite.name}") as call, self._stoppable():
            night = self._opened()
            call(str(night.path))
            count = len(self.entries)
            entries = "1 entry" if count == 1 else f"{count} entries"
            tell(f"sweep {self.suite.name}: {entries}, kept in {night.path}")
            if not self.baseline.entries:
                tell(f"there is no baseline {self.baseline_path} yet; --update-baseline makes it")
            records = self._run(night)
            return self._conclude(records, night)

    def _refuse_absent_presets(self) -> None:
        """See that presets that are files are there: their absence is no fault of a build.

        Raises:
            UsageError: one is not.
        """
        for entry in self.entries:
            is_file = entry.preset is not None and len(entry.preset.split()) == 1
            if is_file and not Path(str(entry.preset)).exists():
                raise UsageError(
                    f"{self.suite.path}: {entry.name}: there is no preset {entry.preset}",
                    "give the path of a preset, as seen from the suite, or a quoted command",
                )

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt as error:
            line = shlex.join(["autofit", *self.words])
            more = "" if self.resume else " --resume"
            raise Interrupted(
                "stopped", f"what was measured is saved; go on with {line}{more}"
            ) from error

    def _opened(self) -> NightFolder:
        if not self.resume:
            return NightFolder.create(self.folder, self.head, today=date.today())  # noqa: DTZ011
        night = NightFolder.open(self.folder) if self.folder else NightFolder.latest(self.head)
        if night is None:
            raise UsageError("there is no such sweep to go on with", "leave out --resume")
        ours, theirs = self.head, night.head
        if (ours.suite, ours.digest) == (theirs.suite, theirs.digest) and ours != theirs:
            raise UsageError(
                f"the sweep in {night.path} has other entries: {', '.join(theirs.names)}",
                "give the --only or --shard that it was begun with",
            )
        if ours != theirs:
            raise UsageError(
                f"the sweep in {night.path} is of another suite, or the suite has changed since",
                "restore the suite, or begin anew without --resume",
            )
        return night

    def _run(self, night: NightFolder) -> list[EntryRecord]:
        records: list[EntryRecord] = []
        found = {entry.name: night.record(entry.name) for entry in self.entries}
        done = {
            name: record
            for name, record in found.items()
            if record is not None and record.status not in _NEVER_LAUNCHED
        }
        for place, entry in enumerate(self.entries):
            if entry.name in done:
                records.append(done[entry.name])
                continue
            left_s = self._left_s(night)
            later = [one for one in self.entries[place + 1 :] if one.name not in done]
            budget_s = granted_s(entry, later, left_s)
            title = f"{entry.name} ({place + 1} of {len(self.entries)})"
            if left_s is not None and budget_s < min(_LEAST_S, entry.wanted_s):
                record = self._not_run(entry, "the time of the whole sweep was up")
            else:
                tell(f"{title}: {entry.mode}, {duration(budget_s)}")
                record = self._run_entry(night, entry, budget_s)
            night.write_record(record)
            told = f": {record.failure.evidence}" if record.failure else ""
            is_absent = record.status == "missing_hardware"
            status = "not on this machine" if is_absent else record.status.replace("_", " ")
            tell(f"{title}: {status} after {duration(record.seconds)}{told}")
            records.append(record)
        return records

    def _left_s(self, night: NightFolder) -> float | None:
        if self.suite.budget_s is None:
            return None
        done = (night.record(entry.name) for entry in self.entries)
        return self.suite.budget_s - sum(record.seconds for record in done if record)

    def _run_entry(self, night: NightFolder, entry: Entry, budget_s: float) -> EntryRecord:
        kept = self.baseline.entry(entry.name)
        if entry.model == DEMO_MODEL:
            demo_model()
        return EntryRun(
            entry=replace(entry, model=str(_model_path(entry))),
            folder=night.entry(entry.name),
            lock=night.lock,
            kept=kept.record if kept else None,
            budget_s=budget_s,
            reproduce=self._reproduce(entry),
        ).run()

    def _reproduce(self, entry: Entry) -> str:
        words = ["autofit", "sweep", str(self.suite.path.absolute()), "--only", entry.name]
        return shlex.join([*words, "--baseline", str(self.baseline_path)])

    def _not_run(self, entry: Entry, why: str, kind: str = "not_run") -> EntryRecord:
        return EntryRecord(
            name=entry.name,
            mode=entry.mode,
            date=datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds"),
            autofit_version=__version__,
            status="not_run",
            failure=Failure(kind, why),
            reproduce=self._reproduce(entry),
        )

    def _read_merged(self) -> list[EntryRecord]:
        """The records of all shards, the newest of each entry."""
        found: dict[str, EntryRecord] = {}
        for path in self.merged:
            night = NightFolder.open(path)
            if (night.head.suite, night.head.digest) != (self.head.suite, self.head.digest):
                raise UsageError(
                    f"the sweep in {path} is of another suite, or of another state of it",
                    f"it says it is of {night.head.suite}",
                )
            for name in night.head.names:
                record = night.record(name)
                if record and (name not in found or found[name].date < record.date):
                    found[name] = record
        # A shard that was lost is no good night.
        lost = "none of the folders has it"
        return [
            found.get(entry.name) or self._not_run(entry, lost, "failed") for entry in self.entries
        ]

    def _conclude(self, records: list[EntryRecord], night: NightFolder | None) -> dict[str, Any]:
        """Judge the records, tell and write what came of it."""
        limits = {entry.name: Thresholds.of(entry.thresholds) for entry in self.entries}
        verdicts = [
            judge(self.baseline.entry(record.name), record, limits[record.name])
            for record in records
        ]
        document = {
            "suite": str(self.suite.path),
            "folder": str(night.path) if night else None,
            **sweep_document(verdicts),
            "broken": self._broken(records),
        }
        tell_verdicts(verdicts, sweep=self.suite.name, on_stdout=self.outputs.leaves_stdout)
        self.outputs.write(verdicts, document, night, sweep=self.suite.name)
        if self.outputs.updates_baseline:
            # A link stays one.
            self.baseline.updated(records, limits).write(resolved(self.baseline_path))
            tell(f"kept in {self.baseline_path}")
        return document

    def _broken(self, records: Sequence[EntryRecord]) -> list[str]:
        """The entries that should have been measured and were not, through no fault of theirs."""
        fails = {entry.name for entry in self.entries if entry.missing == "fail"}
        return [
            record.name
            for record in records
            if (record.status == "missing_hardware" and record.name in fails)
            or (record.status == "not_run" and record.failure and record.failure.kind == "failed")
        ]


def _kept_in(suite: Suite) -> Path:
    """The suite's baseline; in the working directory for a suite that came with autofit."""
    is_bundled = suite.path.absolute().is_relative_to(yaml_files.bundled_root())
    is_here = suite.path.absolute().is_relative_to(Path.cwd())
    return Path.cwd() / suite.baseline.name if is_bundled and not is_here else suite.baseline


def _require_writable(folder: Path) -> None:
    """See that a baseline can be kept, before a night is spent on it."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir():
        raise UsageError(f"{existing} is a file, not a folder", "give another path")
    if not os.access(existing, os.W_OK):
        hint = "let it be written, or name another file with `--baseline FILE`"
        raise UsageError(f"a baseline cannot be kept in {folder}: it may not be written", hint)


def _model_path(entry: Entry) -> Path:
    return demo_model_path() if entry.model == DEMO_MODEL else Path(entry.model)
