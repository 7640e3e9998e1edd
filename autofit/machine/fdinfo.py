"""Memory of Intel GPUs: what our own processes hold, from /proc/PID/fdinfo.

Their drivers (i915 since Linux 6.8, xe) have no counter for the whole device that a user may
read, only these. Format: Linux, Documentation/gpu/drm-usage-stats.rst.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from autofit.machine.gpu import normal_pci_id
from autofit.machine.memory_watcher import Counter
from autofit.units import MIB

# Names of video memory: xe says vram0, i915 says local0.
REGIONS = ("drm-resident-vram", "drm-resident-local")
MIB_PER = {"": 1 / MIB, "KiB": 1 / 1024, "MiB": 1.0}
OFFSPRING_EVERY_S = 5.0


def _offspring() -> Callable[[], Iterable[int]]:
    """The processes that autofit has started, looked up every few seconds."""
    found: list[int] = []
    next_s = 0.0

    def pids() -> Iterable[int]:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + OFFSPRING_EVERY_S
            found[:] = [child.pid for child in psutil.Process().children(recursive=True)]
        return found

    return pids


@dataclass(frozen=True, slots=True)
class _Client:
    """One use of a GPU; several descriptors may belong to it."""

    pci_id: str
    number: str
    resident_mib: float


class FdinfoSource:
    """Memory that our own processes hold on a GPU; what is free is not known."""

    def __init__(
        self,
        pci_ids: Mapping[str, str],
        *,
        pids: Callable[[], Iterable[int]] | None = None,
        root: Path = Path("/"),
    ) -> None:
        """`pci_ids` are addresses by the runtime's name; `pids` default to our offspring."""
        self._pci_ids = {name: normal_pci_id(text) for name, text in pci_ids.items()}
        self._pids = pids or _offspring()
        self._root = root

    def read(self) -> dict[str, Counter]:
        """Memory held now; None where no process of ours has the GPU open."""
        clients = {
            (client.pci_id, client.number): client.resident_mib
            for pid in self._pids()
            for client in self._clients(pid)
        }
        used: dict[str, float] = {}
        for (pci_id, _), resident_mib in clients.items():
            used[pci_id] = used.get(pci_id, 0.0) + resident_mib
        return {name: Counter(used.get(pci_id), None) for name, pci_id in self._pci_ids.items()}

    def _clients(self, pid: int) -> Iterator[_Client]:
        folder = self._root / "proc" / str(pid)
        try:
            numbers = [
                path.name
                for path in (folder / "fd").iterdir()
                if str(path.readlink()).startswith("/dev/dri/")
            ]
        except OSError:
            return
        for number in numbers:
            try:
                text = (folder / "fdinfo" / number).read_text()
            except OSError:
                continue
            fields = {
                key: value.strip()
                for line in text.splitlines()
                for key, colon, value in [line.partition(":")]
                if colon
            }
            if "drm-client-id" in fields:
                yield _Client(
                    normal_pci_id(fields.get("drm-pdev", "")),
                    fields["drm-client-id"],
                    sum(_mib(v) for k, v in fields.items() if k.startswith(REGIONS)),
                )


def _mib(value: str) -> float:
    number, _, unit = value.partition(" ")
    return int(number) * MIB_PER.get(unit, 0.0) if number.isdigit() else 0.0
