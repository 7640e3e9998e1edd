"""Memory of the host: what a tree of processes holds, and what is left for more."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from autofit.machine.cgroup import Cgroup
from autofit.units import MIB

KIB_PER_MIB = 1024
FAMILY_EVERY_S = 5.0  # finding a tree reads every process of the machine
STAT_MAJOR_FAULTS = 9  # of /proc/PID/stat, counted after the name


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a tree of processes, in MiB.

    `anonymous_mib` can only be swapped out. `file_mib` (mapped weights) can be dropped and
    read again, which `major_faults` count. `shared_mib` is shared memory, counted once for
    each process that maps it. Memory that a driver has pinned may appear in none of them.
    """

    anonymous_mib: float
    file_mib: float
    shared_mib: float
    swapped_mib: float
    major_faults: int | None

    @property
    def total_mib(self) -> float:
        """All that is resident."""
        return self.anonymous_mib + self.file_mib + self.shared_mib


class ProcessTree:
    """A process and its offspring, whose memory is read cheaply again and again."""

    def __init__(self, pid: int, *, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        self._members = [pid]
        self._next_look_s = 0.0

    def read(self) -> ProcessMemory | None:
        """Memory now; None when all processes are gone."""
        if time.monotonic() >= self._next_look_s:
            self._look_for_members()
        parts = [part for pid in self._members if (part := self._read_one(pid)) is not None]
        if len(parts) < len(self._members):
            self._next_look_s = 0.0
        if not parts:
            return None
        faults = [part.major_faults for part in parts if part.major_faults is not None]
        return ProcessMemory(
            sum(part.anonymous_mib for part in parts),
            max(part.file_mib for part in parts),  # they mostly map the same files
            sum(part.shared_mib for part in parts),
            sum(part.swapped_mib for part in parts),
            sum(faults) if faults else None,
        )

    def _look_for_members(self) -> None:
        self._next_look_s = time.monotonic() + FAMILY_EVERY_S
        try:
            children = psutil.Process(self._pid).children(recursive=True)
        except psutil.Error:
            return
        self._members = [self._pid, *(child.pid for child in children)]

    def _read_one(self, pid: int) -> ProcessMemory | None:
        try:
            status = (self._proc / str(pid) / "status").read_text()
            stat = (self._proc / str(pid) / "stat").read_text()
        except OSError:
            return None if self._proc.exists() else _read_anywhere(pid)
        kib = {
            name: int(value.split()[0])
            for line in status.splitlines()
            for name, _, value in [line.partition(":")]
            if name in {"RssAnon", "RssFile", "RssShmem", "VmSwap"}
        }
        if "RssAnon" not in kib:
            return None  # a zombie
        return ProcessMemory(
            kib["RssAnon"] / KIB_PER_MIB,
            kib.get("RssFile", 0) / KIB_PER_MIB,
            kib.get("RssShmem", 0) / KIB_PER_MIB,
            kib.get("VmSwap", 0) / KIB_PER_MIB,
            int(stat.rpartition(")")[2].split()[STAT_MAJOR_FAULTS]),
        )


def _read_anywhere(pid: int) -> ProcessMemory | None:
    """Without /proc only the sum is known."""
    try:
        return ProcessMemory(psutil.Process(pid).memory_info().rss / MIB, 0.0, 0.0, 0.0, None)
    except psutil.Error:
        return None


class HostMemory:
    """What the host has left, its own limits and those of our control group together."""

    def __init__(self, cgroup: Cgroup | None = None) -> None:
        self._cgroup = Cgroup.find() if cgroup is None else cgroup

    def available_mib(self) -> float:
        """What can still be used without swapping."""
        available = psutil.virtual_memory().available / MIB
        group = self._cgroup.memory()
        return available if group.free_mib is None else min(available, group.free_mib)
