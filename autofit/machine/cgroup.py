"""Linux control groups, version 1 and 2: limits of a container, kills for want of memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from autofit.units import MIB

NO_LIMIT_BYTES = 1 << 60  # version 1 writes a huge number where there is no limit


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """Memory of the tightest control group; None where there is no limit or no counter.

    `reclaimable_mib` is page cache, which counts as used but is given up for others.
    """

    limit_mib: float | None = None
    used_mib: float | None = None
    reclaimable_mib: float | None = None

    @property
    def free_mib(self) -> float | None:
        """What is left under the limit; None without a limit."""
        if self.limit_mib is None or self.used_mib is None:
            return None
        return max(self.limit_mib - self.used_mib + (self.reclaimable_mib or 0.0), 0.0)


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The control groups that a process is in, innermost first, by controller.

    Found once; the files are read anew with each question.
    """

    memory_folders: tuple[Path, ...] = ()
    cpu_folders: tuple[Path, ...] = ()
    vmstat: Path = Path("/proc/vmstat")

    @classmethod
    def find(cls, pid: int | str = "self", *, root: Path = Path("/")) -> Self:
        """The groups of a process; none where the system has none."""
        mounts = _mounts(root, pid)
        memory: tuple[Path, ...] = ()
        cpu: tuple[Path, ...] = ()
        for line in _read(root / "proc" / str(pid) / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
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
        """Limit and use of the group with the least left; its own use where none has a limit."""
        found = [_memory(folder) for folder in self.memory_folders]
        limited = [group for group in found if group.free_mib is not None]
        if limited:
            return min(limited, key=lambda group: group.free_mib or 0.0)
        return found[0] if found else CgroupMemory()

    def cpu_limit(self) -> float | None:
        """How many CPUs' time the group may use; None without a limit."""
        limits = [limit for folder in self.cpu_folders if (limit := _cpu(folder)) is not None]
        return min(limits, default=None)

    def oom_kills(self) -> int | None:
        """How many processes the kernel has killed for want of memory; None if not counted.

        Two readings around a death tell its cause. Counted in the group where there is one,
        else on the whole machine.
        """
        for folder in self.memory_folders[:1]:
            for name in ("memory.events", "memory.oom_control"):
                count = _field(_read(folder / name), "oom_kill")
                if count is not None:
                    return count
        return _field(_read(self.vmstat), "oom_kill")


def _mounts(root: Path, pid: int | str) -> dict[str, tuple[str, str]]:
    """(root inside the hierarchy, where it is mounted) by controller; "" is version 2."""
    found: dict[str, tuple[str, str]] = {}
    for line in _read(root / "proc" / str(pid) / "mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        inside, mounted = left.split()[3:5]
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2":
            found.setdefault("", (inside, mounted))
        elif kind == "cgroup":
            for controller in options.split()[-1].split(","):
                found.setdefault(controller, (inside, mounted))
    return found


def _chain(
    root: Path, mount: tuple[str, str] | None, path: str, must_have: str
) -> tuple[Path, ...]:
    """The folders of a group and its ancestors that have the controller's file."""
    if mount is None:
        return ()
    inside, mounted = mount
    top = root / mounted.lstrip("/")
    group = PurePosixPath(path)
    # In a container the mount may begin at the group itself, or lie beside it.
    relative = group.relative_to(inside) if group.is_relative_to(inside) else PurePosixPath()
    folders = [top / folder for folder in (relative, *relative.parents)]
    return tuple(folder for folder in folders if (folder / must_have).is_file())


def _memory(folder: Path) -> CgroupMemory:
    is_v2 = (folder / "memory.max").exists()
    limit = _number(folder / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
    used = _number(folder / ("memory.current" if is_v2 else "memory.usage_in_bytes"))
    stat = _read(folder / "memory.stat")
    prefix = "" if is_v2 else "total_"
    cached = [_field(stat, f"{prefix}{age}_file") for age in ("active", "inactive")]
    return CgroupMemory(
        limit / MIB if limit is not None and limit < NO_LIMIT_BYTES else None,
        used / MIB if used is not None else None,
        sum(part or 0 for part in cached) / MIB
        if any(part is not None for part in cached)
        else None,
    )


def _cpu(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    if not quota:
        quota = _read(folder / "cpu.cfs_quota_us").strip()
        period = _read(folder / "cpu.cfs_period_us")
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None  # `max`
    return share if share > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _field(text: str, name: str) -> int | None:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None
