"""AMD and Intel GPUs as Linux shows them in /sys/class/drm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autofit.machine.gpu import Gpu, Vendor, normal_pci_id
from autofit.machine.memory_watcher import Counter
from autofit.units import MIB

VENDORS: Mapping[str, Vendor] = {"0x1002": "amd", "0x8086": "intel"}


def sysfs_gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """The AMD and Intel GPUs, each vendor's in order of the bus."""
    found: list[tuple[Vendor, str, float | None]] = []
    for folder in (root / "sys/class/drm").glob("card*"):
        vendor = VENDORS.get(_read(folder / "device/vendor"))
        if vendor is not None and folder.name.removeprefix("card").isdigit():
            total_mib = _mib(folder / "device/mem_info_vram_total")
            found.append((vendor, _pci_id(folder / "device"), total_mib))
    counts = dict.fromkeys(VENDORS.values(), 0)
    gpus = []
    for vendor, pci_id, total_mib in sorted(found, key=lambda gpu: gpu[1]):
        gpus.append(Gpu(vendor, counts[vendor], pci_id, total_mib=total_mib))
        counts[vendor] += 1
    return tuple(gpus)


def kfd_order(root: Path = Path("/")) -> tuple[str, ...]:
    """PCI addresses of AMD GPUs in ROCm's own order, which is that of its topology nodes."""
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*")
    order = []
    for folder in sorted((node for node in nodes if node.name.isdigit()), key=_number):
        fields = dict(
            line.split(" ", 1) for line in _read(folder / "properties").splitlines() if " " in line
        )
        if int(fields.get("simd_count", 0)) > 0:  # a CPU is a node, too
            place = int(fields.get("location_id", 0))
            domain = int(fields.get("domain", 0))
            bus, slot, function = place >> 8 & 0xFF, place >> 3 & 0x1F, place & 0x7
            order.append(f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")
    return tuple(order)


@dataclass(frozen=True, slots=True)
class AmdSource:
    """Memory of AMD GPUs by the runtime's names, from the amdgpu driver.

    On a device with unified memory the graphics translation table (memory of the host that
    the GPU may use) counts, too: the carved-out part alone is small.
    """

    folders: Mapping[str, Path]
    unified: frozenset[str] = frozenset()

    def read(self) -> dict[str, Counter]:
        """Used and free memory now."""
        return {name: self._read_one(name, folder) for name, folder in self.folders.items()}

    def _read_one(self, name: str, folder: Path) -> Counter:
        used_mib = free_mib = 0.0
        for kind in ("vram", "gtt") if name in self.unified else ("vram",):
            used = _mib(folder / f"mem_info_{kind}_used")
            total = _mib(folder / f"mem_info_{kind}_total")
            if used is None or total is None:
                return Counter(None, None)
            used_mib += used
            free_mib += total - used
        return Counter(used_mib, free_mib)


@dataclass(frozen=True, slots=True)
class AmdHostSource:
    """Host memory that AMD GPUs use: it grows when a driver moves video memory out.

    Keys are the runtime's names with `.gtt` behind them.
    """

    folders: Mapping[str, Path]

    def read(self) -> dict[str, Counter]:
        """Used and free memory of the graphics translation table now."""
        found = {}
        for name, folder in self.folders.items():
            used = _mib(folder / "mem_info_gtt_used")
            total = _mib(folder / "mem_info_gtt_total")
            if used is not None:
                found[f"{name}.gtt"] = Counter(used, None if total is None else total - used)
        return found


def device_folder(pci_id: str, root: Path = Path("/")) -> Path:
    """The folder of a PCI device."""
    return root / "sys/bus/pci/devices" / pci_id


def _pci_id(device: Path) -> str:
    for line in _read(device / "uevent").splitlines():
        if line.startswith("PCI_SLOT_NAME="):
            return normal_pci_id(line.partition("=")[2])
    return normal_pci_id(device.resolve().name)


def _number(folder: Path) -> int:
    return int(folder.name)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _mib(path: Path) -> float | None:
    text = _read(path)
    return int(text) / MIB if text.isdigit() else None
