"""Memory of processes on this host."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from autofit.machine.kernel_files import read_fields, read_text, to_number
from autofit.units import MIB

_KIB_PER_MIB = 1024
_FIND_CHILDREN_EVERY_S = 5.0  # it reads every process of the machine
_MAJOR_FAULTS = 9  # position in /proc/PID/stat, counted after the name
_IPC_LOCK = 14  # the bit of CAP_IPC_LOCK, which removes the limit of locked memory


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a process and its descendants, in MiB.

    `anonymous_mib` can only be swapped out. `file_mib` (mapped weights) can be dropped and read
    again, which `major_faults` count. `shared_mib` is shared memory, counted once for each
    process that maps it. Memory that a driver has pinned can be missing from all of them.
    """

    anonymous_mib: float
    file_mib: float
    shared_mib: float
    swapped_mib: float
    major_faults: int | None

    @property
    def total_mib(self) -> float:
        """All resident memory."""
        return self.anonymous_mib + self.file_mib + self.shared_mib


class ProcessTree:
    """A process and its descendants; reading their memory is cheap."""

    def __init__(self, pid: int, *, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        self._pids = [pid]
        self._next_search_s = 0.0

    def read(self) -> ProcessMemory | None:
        """Return the memory now, or None if no process is left."""
        if time.monotonic() >= self._next_search_s:
            self._find_children()
        parts = [part for pid in self._pids if (part := self._read_one(pid)) is not None]
        if len(parts) < len(self._pids):
            self._next_search_s = 0.0
        if not parts:
            return None
        faults = [part.major_faults for part in parts if part.major_faults is not None]
        return ProcessMemory(
            sum(part.anonymous_mib for part in parts),
            max(part.file_mib for part in parts),  # they usually map the same files
            sum(part.shared_mib for part in parts),
            sum(part.swapped_mib for part in parts),
            sum(faults) if faults else None,
        )

    def _find_children(self) -> None:
        self._next_search_s = time.monotonic() + _FIND_CHILDREN_EVERY_S
        try:
            children = psutil.Process(self._pid).children(recursive=True)
        except psutil.Error:
            return
        self._pids = [self._pid, *(child.pid for child in children)]

    def _read_one(self, pid: int) -> ProcessMemory | None:
        folder = self._proc / str(pid)
        status = read_fields(read_text(folder / "status"), ":")
        stat = read_text(folder / "stat")
        if "RssAnon" not in status or not stat:  # it is gone, a zombie, or there is no /proc
            return None if self._proc.exists() else _resident_memory(pid)
        anonymous, file, shared, swapped = (
            (to_number(status.get(name, "").partition(" ")[0]) or 0) / _KIB_PER_MIB
            for name in ("RssAnon", "RssFile", "RssShmem", "VmSwap")
        )
        faults = int(stat.rpartition(")")[2].split()[_MAJOR_FAULTS])
        return ProcessMemory(anonymous, file, shared, swapped, faults)


def _resident_memory(pid: int) -> ProcessMemory | None:
    """Return the resident memory of a process without /proc, where its parts are unknown."""
    try:
        return ProcessMemory(psutil.Process(pid).memory_info().rss / MIB, 0.0, 0.0, 0.0, None)
    except psutil.Error:
        return None


def locked_memory_mib(root: Path = Path("/")) -> float | None:
    """Return the MiB that a process may lock (RLIMIT_MEMLOCK), or None if there is no limit."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = read_fields(read_text(root / "proc/self/status"), ":")
    is_exempt = int(status.get("CapEff", "0"), 16) >> _IPC_LOCK & 1
    return None if soft == resource.RLIM_INFINITY or is_exempt else soft / MIB
