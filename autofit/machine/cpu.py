"""The processor: the cores that a runtime may use, their clock, temperature and throttling."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from autofit.machine.cgroup import Cgroup
from autofit.machine.kernel_files import read_number, read_text, to_number

_CPU_FOLDER = Path("sys/devices/system/cpu")
# Equal cores may differ a little in their highest clock.
_SAME_CLOCK = 0.8
# The sensors of processors, by the names of their drivers.
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


_MOST_CPUS = 1 << 16


@dataclass(frozen=True, slots=True)
class Cores:
    """The processor cores of this machine.

    `logical` are all hardware threads. `usable` are those that this process may use by its
    affinity and control group. `physical` are the usable ones with hyper-threads counted once.
    `performance` are the physical ones of the fastest kind. `nodes` is the number of memory nodes
    with usable threads; each socket of a server has at least one.
    """

    logical: int
    usable: int
    physical: int
    performance: int
    nodes: int = 1


def read_cores(cgroup: Cgroup | None = None, *, root: Path = Path("/")) -> Cores:
    """Count the cores that matter for the number of threads."""
    logical = psutil.cpu_count() or 1
    limit = (cgroup or Cgroup.find()).cpu_limit()
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    allowed = set(os.sched_getaffinity(0) if has_affinity else range(logical))
    cores: dict[tuple[str, str], set[int]] = {}
    for number in allowed:
        topology = root / _CPU_FOLDER / f"cpu{number}/topology"
        package = read_text(topology / "physical_package_id")
        core = read_text(topology / "core_id") or f"cpu{number}"
        cores.setdefault((package, core), set()).add(number)
    fastest = _fastest(allowed, root)
    quota = len(allowed) if limit is None else max(1, int(limit))
    performance = sum(1 for threads in cores.values() if threads & fastest)
    return Cores(
        logical=logical,
        usable=min(len(allowed), quota),
        physical=min(len(cores), quota),
        performance=min(performance, quota),
        nodes=_count_nodes(allowed, root),
    )


def _fastest(allowed: set[int], root: Path) -> set[int]:
    """Return the CPUs of the fastest kind.

    Intel lists them, Arm gives each a capacity. Other hybrid processors show only that some
    cores reach a much lower clock.
    """
    intel = _parse_cpu_list(read_text(root / "sys/devices/cpu_core/cpus")) & allowed
    if intel:
        return intel
    for file, least_share in (("cpu_capacity", 1.0), ("cpufreq/cpuinfo_max_freq", _SAME_CLOCK)):
        speeds = {n: read_number(root / _CPU_FOLDER / f"cpu{n}" / file) for n in allowed}
        known = {number: speed for number, speed in speeds.items() if speed is not None}
        if known and len(known) == len(allowed):
            least = least_share * max(known.values())
            return {number for number, speed in known.items() if speed >= least}
    return allowed


def _count_nodes(allowed: set[int], root: Path) -> int:
    """Return the number of memory nodes with some of these CPUs, 1 if unknown."""
    lists = (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")
    return max(1, sum(bool(_parse_cpu_list(read_text(path)) & allowed) for path in lists))


def _parse_cpu_list(text: str) -> set[int]:
    """Parse the kernel's notation of CPUs: `0-7,16`."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = to_number(first), to_number(last or first)
        if start is not None and end is not None and end < _MOST_CPUS:
            found |= set(range(start, end + 1))
    return found


def cpu_mhz() -> float | None:
    """Return the mean clock of all cores now, or None if unknown."""
    try:
        # None in some virtual machines, although the type stubs exclude it.
        return getattr(psutil.cpu_freq(), "current", None) or None
    except (OSError, NotImplementedError, RuntimeError):
        return None


def cpu_celsius() -> float | None:
    """Return the highest temperature of the processor's sensors, or None if it has none."""
    if not hasattr(psutil, "sensors_temperatures"):  # not on macOS
        return None
    try:
        sensors = psutil.sensors_temperatures()
    except (OSError, ValueError):
        return None
    found = [one.current for name in _CPU_SENSORS for one in sensors.get(name, ())]
    return max((celsius for celsius in found if celsius), default=None)


def count_cpu_throttles(root: Path = Path("/")) -> int | None:
    """Return how often the processor throttled for heat since boot, or None if unknown."""
    counts: dict[str, int] = {}
    for path in root.glob(f"{_CPU_FOLDER}/cpu[0-9]*/thermal_throttle/package_throttle_count"):
        package = read_text(path.parent.parent / "topology/physical_package_id")
        count = read_number(path)
        if package and count is not None:
            counts[package] = max(count, counts.get(package, 0))
    return sum(counts.values()) if counts else None


def slow_governors(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the distinct governors of the processor's clock other than `performance`."""
    paths = root.glob(f"{_CPU_FOLDER}/cpu[0-9]*/cpufreq/scaling_governor")
    return tuple(sorted({read_text(path) for path in paths} - {"performance", ""}))
