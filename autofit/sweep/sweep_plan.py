"""The plan of a sweep: its entries, commands and baseline, and the verdicts on its records."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autofit import __version__, yaml_files
from autofit.errors import MissingError, UsageError
from autofit.model.synth.demo_model import demo_model_path
from autofit.sweep.baseline_file import Baseline
from autofit.sweep.entry_command import measuring_command
from autofit.sweep.entry_record import EntryFailure, EntryRecord
from autofit.sweep.judge import judge_entry
from autofit.sweep.night_folder import NightFolder, NightHead
from autofit.sweep.suite import DEMO_MODEL, Suite, SuiteEntry, read_suite
from autofit.sweep.verdict import EntryVerdict, Thresholds, sweep_document
from autofit.text_format import duration


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
            command = measuring_command(with_model_path(entry), self.before(entry), budget_s)
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

    def missing(self, entry: SuiteEntry, reason: str) -> EntryRecord:
        """Return the record of an entry that no machine of the sweep can measure."""
        failure = EntryFailure(MissingError.kind, reason, reason=MissingError.reason)
        record = self.not_run(entry, reason)
        return replace(record, status="missing_hardware", failure=failure)

    def merge(
        self, records: Iterable[EntryRecord], describe_lost: Callable[[SuiteEntry], EntryRecord]
    ) -> list[EntryRecord]:
        """Return the newest record of each entry; one that has none is described as lost."""
        found: dict[str, EntryRecord] = {}
        for record in records:
            if record.name not in found or found[record.name].date < record.date:
                found[record.name] = record
        return [found.get(entry.name) or describe_lost(entry) for entry in self.entries]

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


def with_model_path(entry: SuiteEntry) -> SuiteEntry:
    """Return an entry with the path of its model, which may be that of `autofit demo`."""
    return replace(entry, model=str(demo_model_path())) if entry.model == DEMO_MODEL else entry
