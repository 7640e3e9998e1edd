"""A night that several runners share: each takes entries until none is left, and one judges.

The entries are items of a queue in a storage, and so is the verdict, which comes last. The record
of an entry is written to this runner's folder first, and then delivered.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from autofit.errors import AutofitError, UsageError
from autofit.fleet.queue_items import Item
from autofit.fleet.storage import WaitingStorage, heartbeat_s, open_storage
from autofit.fleet.work_queue import Claim, WorkQueue
from autofit.sweep.entry_record import NEVER_LAUNCHED, EntryRecord
from autofit.sweep.night_folder import NightFolder, NightHead
from autofit.sweep.suite import SuiteEntry
from autofit.sweep.sweep_plan import SweepPlan, grant_budget_s

# No entry has this name.
_VERDICT = "(verdict)"
# A night lasts from noon to noon, so that runners may join it after midnight.
_NOON = timedelta(hours=12)
_REPORT_INTERVAL_S = 300.0


@dataclass(frozen=True, slots=True)
class SharedStudy:
    """The storage of a night that runners share, and the night's name if it was given."""

    url: str
    name: str | None = None

    def open(self, report: Callable[[str], None]) -> WaitingStorage:
        """Open the storage.

        Raises:
            UsageError: it cannot be used.
        """
        return open_storage(self.url, report=report)

    def night(self, head: NightHead) -> str:
        """Return the name of the night: the given one, or suite, digest and date."""
        date = datetime.now() - _NOON  # noqa: DTZ005 - the night of the people here
        return self.name or f"{head.suite}-{head.digest[:8]}-{date:%Y-%m-%d}"

    def head(self, head: NightHead, folder: Path | None, *, resume: bool) -> NightHead:
        """Return the head of this runner's folder. A resumed night keeps its name."""
        if resume and self.name is None:
            begun = NightFolder.open(folder) if folder else NightFolder.latest_shared(head)
            return replace(head, night=begun.head.night if begun else None)
        return replace(head, night=self.night(head))

    def records(self, plan: SweepPlan, report: Callable[[str], None]) -> list[EntryRecord]:
        """Return the records of a night that this machine does not measure.

        Raises:
            UsageError: the storage has no such night.
        """
        name, names = self.night(plan.head), [*plan.head.names, _VERDICT]
        queue = WorkQueue.find(self.open(report), name, _identity(plan), names)
        return _records(plan, queue.items())


@dataclass(slots=True, kw_only=True)
class SharedNight:
    """This runner's part in a night that others share."""

    plan: SweepPlan
    folder: NightFolder
    queue: WorkQueue
    measure: Callable[[SuiteEntry, float], EntryRecord]
    report: Callable[[str], None]
    # The entries that this machine cannot measure.
    refused: set[str] = field(default_factory=set)
    _reported: tuple[str, float] = ("", 0.0)

    @classmethod
    def join(
        cls,
        plan: SweepPlan,
        folder: NightFolder,
        storage: WaitingStorage,
        *,
        measure: Callable[[SuiteEntry, float], EntryRecord],
        report: Callable[[str], None],
    ) -> SharedNight:
        """Join the night of a folder, or begin it.

        Raises:
            UsageError: another suite has a night of this name, or its runners have another
                baseline.
        """
        name = str(folder.head.night)
        names = [*folder.head.names, _VERDICT]
        baseline = hashlib.sha256(plan.baseline.dump().encode()).hexdigest()[:16]
        queue = WorkQueue.join(
            storage, name, _identity(plan), names, folder=str(folder.path), extra=baseline
        )
        is_judged = queue.items()[_VERDICT].state == "done"
        if queue.extra != baseline and not is_judged:
            raise UsageError(
                f"the runner that began the night {name} has another baseline",
                f"use the same {plan.baseline_path.name} on all machines, or another --study-name",
            )
        report(f"night {name}")
        refused = {entry.name for entry in plan.entries if entry.find_unmet_need()}
        return cls(
            plan=plan, folder=folder, queue=queue, measure=measure, report=report, refused=refused
        )

    def run(self, conclude: Callable[[Sequence[EntryRecord], NightFolder], int]) -> int | None:
        """Take entries until none is left for this machine, and judge if it is the last one.

        Return the exit code of the verdict, or None if this runner does not judge.
        """
        self._deliver_kept()
        claim = self._take_entries()
        if claim is None:
            return None
        with claim:
            records = _records(self.plan, self.queue.items())
            for record in records:
                self.folder.write_record(record)
            code = conclude(records, self.folder)
            claim.deliver({"exit_code": code}, float(code))
        return code

    def _take_entries(self) -> Claim | None:
        """Measure entries until the night is over; return the claim to judge it, or None.

        Raises:
            AutofitError: two runners have failed to judge it.
        """
        idle_since_s: float | None = None
        while True:
            self.queue.revive()
            order = self._order()
            claim = self.queue.own_claim(order) or self.queue.claim(order)
            if claim is not None:
                self._measure(claim)
                idle_since_s = None
                continue
            items = self.queue.items()
            verdict = items.pop(_VERDICT)
            running = [item for item in items.values() if item.state == "running"]
            waiting = [item.name for item in items.values() if item.state == "waiting"]
            if verdict.state == "done":
                self.report(f"{_host(verdict)} has judged the night; --merge judges it again")
                return None
            if verdict.state == "lost":
                raise AutofitError(
                    f"two runners failed to judge the night {self.queue.name}",
                    "judge it with --merge",
                )
            if running and self.refused.issuperset(one.name for one in running):
                self._report_waiting(running)
                self.report("no entry is left for this machine; another runner judges the night")
                return None
            idle_s = 0.0
            if running:
                idle_since_s = None
                self._report_waiting(running)
            elif waiting:
                # A runner that has what they need may be about to take them.
                idle_since_s = idle_since_s or time.monotonic()
                idle_s = time.monotonic() - idle_since_s
            if not running and (not waiting or idle_s > self.queue.settle_s):
                claim = self.queue.claim([_VERDICT])
                if claim is not None:
                    return claim
            time.sleep(max(0.5, heartbeat_s() / 6))

    def _order(self) -> list[str]:
        """Return the entries that this machine can measure, in the order to take them.

        Those that this folder has begun come first, and then those that take longest.
        """

        def key(entry: SuiteEntry) -> tuple[bool, float]:
            before = self.plan.before(entry)
            expected_s = before.seconds if before and before.seconds else entry.full_budget_s
            return not (self.folder.path / "entries" / entry.name).is_dir(), -expected_s

        entries = (one for one in self.plan.entries if one.name not in self.refused)
        return [entry.name for entry in sorted(entries, key=key)]

    def _measure(self, claim: Claim) -> None:
        """Measure a claimed entry, and deliver its record. A missing model is left to others."""
        entry = next(one for one in self.plan.entries if one.name == claim.name)
        if claim.hosts:
            self.report(f"{entry.name}: taken over from {claim.hosts[-1]}")
        with claim:
            record = self._kept(entry)
            if record is None:
                budget_s = self._grant_s(entry)
                claim.note_budget(budget_s)
                record = self.measure(entry, budget_s)
            if record.status == "missing_hardware" and record.failure is not None:
                self.refused.add(entry.name)
                claim.give_back(record.failure.evidence)
                return
            record = replace(record, notes=(*record.notes, f"measured on {self.queue.host}"))
            self.folder.write_record(record)
            claim.deliver(record.to_dict(), record.seconds)

    def _grant_s(self, entry: SuiteEntry) -> float:
        """Return the seconds for an entry, of those that all runners have left."""
        left_s = self.plan.suite.budget_s
        items = self.queue.items()
        if left_s is not None:
            left_s -= sum(item.seconds for name, item in items.items() if name != entry.name)
        later = [
            one
            for one in self.plan.entries
            if items[one.name].state == "waiting" and one.name != entry.name
        ]
        return grant_budget_s(entry, later, left_s)

    def _kept(self, entry: SuiteEntry) -> EntryRecord | None:
        record = self.folder.record(entry.name)
        return record if record and record.status not in NEVER_LAUNCHED else None

    def _deliver_kept(self) -> None:
        """Deliver the records that an earlier run in this folder could not deliver."""
        items = self.queue.items()
        if items[_VERDICT].state == "done":
            return
        for entry in self.plan.entries:
            record = self._kept(entry)
            if record is not None and items[entry.name].state != "done":
                self.queue.deliver(entry.name, record.to_dict(), record.seconds)
                self.report(f"{entry.name}: delivered")

    def _report_waiting(self, running: Sequence[Item]) -> None:
        places = ", ".join(f"{item.name} on {_host(item)}" for item in running)
        text, reported_s = self._reported
        now_s = time.monotonic()
        if places != text or now_s > reported_s + _REPORT_INTERVAL_S:
            self.report(f"waiting: others still measure {places} (Ctrl-C stops)")
            self._reported = (places, now_s)


def _identity(plan: SweepPlan) -> dict[str, str]:
    return {"suite": plan.head.suite, "version of the suite": plan.head.digest}


def _records(plan: SweepPlan, items: dict[str, Item]) -> list[EntryRecord]:
    """Return the record of each entry. One that no runner measured has the reason."""
    found = [
        EntryRecord.from_dict(item.result)
        for name, item in items.items()
        if item.state == "done" and name != _VERDICT
    ]
    return plan.merge(found, lambda entry: _lost_record(plan, entry, items[entry.name]))


def _lost_record(plan: SweepPlan, entry: SuiteEntry, item: Item) -> EntryRecord:
    if item.state == "running":
        return plan.not_run(entry, f"{_host(item)} still measures it", "failed")
    if item.state == "lost":
        hosts = " and ".join(item.hosts) or "its runner"
        return plan.not_run(entry, f"{hosts} died or failed while measuring it", "failed")
    if item.notes:
        return plan.missing(
            entry, "; ".join(f"{host}: {text}" for host, text in item.notes.items())
        )
    if entry.needs.model_dump(exclude_none=True):
        return plan.missing(entry, "no runner has what it needs")
    return plan.not_run(entry, "no runner has taken it", "failed")


def _host(item: Item) -> str:
    return item.hosts[-1] if item.hosts else "another runner"
