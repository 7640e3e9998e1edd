"""What the system allows a process: locked memory, the processor's clock, GPU files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from autofit.units import MIB

_IPC_LOCK = 14  # the number of CAP_IPC_LOCK, whose holder may lock what it likes


def locked_memory_mib(root: Path = Path("/")) -> float | None:
    """How much memory a process may lock (RLIMIT_MEMLOCK); None where there is no limit."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or _may_lock(root):
        return None
    return soft / MIB


def _may_lock(root: Path) -> bool:
    try:
        text = (root / "proc/self/status").read_text()
    except OSError:
        return False
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> _IPC_LOCK & 1)
    return False


def slow_governors(root: Path = Path("/")) -> tuple[str, ...]:
    """The governors of the processor's clock that are not `performance`, each once."""
    found = set()
    for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"):
        try:
            found.add(path.read_text().strip())
        except OSError:
            continue
    return tuple(sorted(found - {"performance", ""}))


def closed_files(patterns: Sequence[str], root: Path = Path("/")) -> tuple[Path, ...]:
    """Device files that are there but that this user may not open."""
    found = (path for pattern in patterns for path in sorted(root.glob(pattern.lstrip("/"))))
    return tuple(path for path in found if not os.access(path, os.R_OK | os.W_OK))
