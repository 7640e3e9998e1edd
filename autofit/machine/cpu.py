"""The CPU cores that a runtime may use: how many, and of which kind."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from autofit.machine.cgroup import Cgroup


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores of this machine that this process may use.

    `logical` are all hardware threads of the machine; `usable` those that affinity and control
    group leave us; `physical` the usable cores with hyper-threads counted once; `performance`
    those physical ones of the fastest kind, all of them where there is one kind only.
    """

    logical: int
    usable: int
    physical: int
    performance: int


def read_cores(cgroup: Cgroup | None = None, *, root: Path = Path("/")) -> Cores:
    """The cores that count for the number of threads."""
    logical = psutil.cpu_count() or 1
    limit = (Cgroup.find() if cgroup is None else cgroup).cpu_limit()
    allowed = _allowed()
    folder = root / "sys/devices/system/cpu"
    cores: dict[tuple[str, str], set[int]] = {}
    for number in allowed:
        topology = folder / f"cpu{number}" / "topology"
        package = _read(topology / "physical_package_id")
        core = _read(topology / "core_id") or f"cpu{number}"
        cores.setdefault((package, core), set()).add(number)
    fast = _fast(allowed, root)
    quota = len(allowed) if limit is None else max(1, int(limit))
    physical = len(cores)
    performance = sum(1 for threads in cores.values() if threads & fast)
    return Cores(
        logical=logical,
        usable=min(len(allowed), quota),
        physical=min(physical, quota),
        performance=min(performance, quota),
    )


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(psutil.cpu_count() or 1))


def _fast(allowed: set[int], root: Path) -> set[int]:
    """CPUs of the fastest kind: Intel names them, Arm gives each a capacity."""
    intel = _cpu_list(_read(root / "sys/devices/cpu_core/cpus")) & allowed
    if intel:
        return intel
    folder = root / "sys/devices/system/cpu"
    capacities = {number: _read(folder / f"cpu{number}" / "cpu_capacity") for number in allowed}
    known = {number: int(text) for number, text in capacities.items() if text.isdigit()}
    if len(known) < len(allowed):
        return allowed
    best = max(known.values())
    return {number for number, capacity in known.items() if capacity == best}


def _cpu_list(text: str) -> set[int]:
    """CPUs from the kernel's notation `0-7,16`."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
