"""Linux control groups, version 1 and 2: limits of a container, and kills by the kernel."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

import psutil

from autofit.machine.kernel_files import read_fields, read_number, read_text, to_number
from autofit.units import MIB

_NO_LIMIT_BYTES = 1 << 60  # version 1 writes a huge number if there is no limit
_OOM_FILES = ("memory.events", "memory.oom_control")


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """Memory of a control group; a field is None if there is no limit or counter.

    `reclaimable_mib` is page cache, which counts as used although the kernel frees it on demand.
    """

    limit_mib: float | None = None
    used_mib: float | None = None
    reclaimable_mib: float | None = None

    @property
    def free_mib(self) -> float | None:
        """Memory left under the limit, or None if there is no limit."""
        if self.limit_mib is None or self.used_mib is None:
            return None
        return max(self.limit_mib - self.used_mib + (self.reclaimable_mib or 0.0), 0.0)


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The control groups of a process by controller, innermost first.

    The groups are found once. Each method reads their files again.
    """

    memory_folders: tuple[Path, ...] = ()
    cpu_folders: tuple[Path, ...] = ()
    vmstat: Path = Path("/proc/vmstat")

    @classmethod
    def find(cls, pid: int | str = "self", *, root: Path = Path("/")) -> Self:
        """Find the groups of a process; there are none on other systems."""
        mounts = _mounts(root, pid)
        memory: tuple[Path, ...] = ()
        cpu: tuple[Path, ...] = ()
        for line in read_text(root / "proc" / str(pid) / "cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            names = set(controllers.split(",")) if controllers else {""}
            if "" in names:
                memory = memory or _chain(root, mounts.get(""), path, "memory.max")
                cpu = cpu or _chain(root, mounts.get(""), path, "cpu.max")
            if "memory" in names:
                memory = _chain(root, mounts.get("memory"), path, "memory.limit_in_bytes")
            if "cpu" in names:
                cpu = _chain(root, mounts.get("cpu"), path, "cpu.cfs_quota_us")
        return cls(memory, cpu, root / "proc" / "vmstat")

    def memory(self) -> CgroupMemory:
        """Return the group with the least memory left, or the innermost if none has a limit."""
        found = [_memory(folder) for folder in self.memory_folders]
        limited = [group for group in found if group.free_mib is not None]
        if limited:
            return min(limited, key=lambda group: group.free_mib or 0.0)
        return found[0] if found else CgroupMemory()

    def available_mib(self) -> float:
        """Return the memory that is left, on the host and in the group, without swapping."""
        available = psutil.virtual_memory().available / MIB
        free_mib = self.memory().free_mib
        return available if free_mib is None else min(available, free_mib)

    def cpu_limit(self) -> float | None:
        """Return the number of CPUs that the group may use, or None if there is no limit."""
        limits = [limit for folder in self.cpu_folders if (limit := _cpu(folder)) is not None]
        return min(limits, default=None)

    def oom_kills(self) -> int | None:
        """Return how many processes the kernel has killed to free memory, or None if unknown.

        It counts the kills in the group, or on the whole machine if there is no group. A
        difference between two readings shows why a process died.
        """
        files = [folder / name for folder in self.memory_folders[:1] for name in _OOM_FILES]
        for path in (*files, self.vmstat):
            count = to_number(read_fields(read_text(path), " ").get("oom_kill", ""))
            if count is not None:
                return count
        return None


def _mounts(root: Path, pid: int | str) -> dict[str, tuple[str, str]]:
    """Map each controller to its root folder and mount point; the key "" is version 2."""
    found: dict[str, tuple[str, str]] = {}
    for line in read_text(root / "proc" / str(pid) / "mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        places, (kind, *options) = left.split()[3:5], right.split(" ", 2)
        if len(places) < 2 or not options:  # noqa: PLR2004 - a line of another form
            continue
        inside, mounted = places
        if kind == "cgroup2":
            found.setdefault("", (inside, mounted))
        elif kind == "cgroup":
            for controller in options[-1].split()[-1].split(","):
                found.setdefault(controller, (inside, mounted))
    return found


def _chain(
    root: Path, mount: tuple[str, str] | None, path: str, must_have: str
) -> tuple[Path, ...]:
    """Return the folders of a group and its ancestors that have the controller's file."""
    if mount is None:
        return ()
    inside, mounted = mount
    top = root / mounted.lstrip("/")
    group = PurePosixPath(path)
    # In a container the mount can start at the group itself, or at an unrelated one.
    relative = group.relative_to(inside) if group.is_relative_to(inside) else PurePosixPath()
    folders = [top / folder for folder in (relative, *relative.parents)]
    # `Path.is_file` raises an error for a name that is too long.
    return tuple(f for f in folders if os.path.isfile(f / must_have))  # noqa: PTH113


def _memory(folder: Path) -> CgroupMemory:
    is_v2 = (folder / "memory.max").exists()
    limit = read_number(folder / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
    used = read_number(folder / ("memory.current" if is_v2 else "memory.usage_in_bytes"))
    stat = read_fields(read_text(folder / "memory.stat"), " ")
    prefix = "" if is_v2 else "total_"
    counts = [to_number(stat.get(f"{prefix}{age}_file", "")) for age in ("active", "inactive")]
    cached = [count for count in counts if count is not None]
    return CgroupMemory(
        limit / MIB if limit is not None and limit < _NO_LIMIT_BYTES else None,
        used / MIB if used is not None else None,
        sum(cached) / MIB if cached else None,
    )


def _cpu(folder: Path) -> float | None:
    quota, _, period = read_text(folder / "cpu.max").partition(" ")
    if not quota:
        quota = read_text(folder / "cpu.cfs_quota_us")
        period = read_text(folder / "cpu.cfs_period_us")
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None  # `max`
    return share if share > 0 else None
