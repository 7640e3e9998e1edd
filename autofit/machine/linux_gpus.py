"""Graphics cards as Linux shows them in /sys and /proc, and the memory of AMD and Intel GPUs.

The drivers of Intel GPUs (i915 since Linux 6.8, xe) let a user read the memory of each process,
but not of the whole device. Its format is in Linux's `Documentation/gpu/drm-usage-stats.rst`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from autofit.machine.gpu import (
    PCI_VENDORS,
    Gpu,
    GpuState,
    Vendor,
    normal_pci_id,
    pcie_gb_s,
)
from autofit.machine.kernel_files import (
    read_fields,
    read_mib,
    read_number,
    read_text,
    to_number,
)
from autofit.machine.memory_counter import UNKNOWN, MemoryCounter
from autofit.units import MIB

# A level of pp_dpm_sclk: `1: 1800Mhz *`, with a star at the current one.
_CLOCK_LEVEL = re.compile(r"^\d+: (\d+)Mhz", re.MULTILINE | re.IGNORECASE)
# The fields of video memory: xe calls it vram0, i915 local0.
_DRM_MEMORY = ("drm-resident-vram", "drm-resident-local")
_MIB_PER_UNIT = {"": 1 / MIB, "KiB": 1 / 1024, "MiB": 1.0}
_FIND_CHILDREN_EVERY_S = 5.0
# The speed of a link: `16.0 GT/s PCIe`.
_LINK_SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s")
# PCI classes: VGA, 3D and other display controllers, and processing accelerators.
_PCI_CLASSES = ("0x03", "0x12")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


@dataclass(frozen=True, slots=True)
class Link:
    """The narrowest link between a card and the processor; both ends allow `possible` lanes.

    `gb_s` is the speed of copies over the slowest link between them, or None if unknown.
    """

    lanes: int
    possible: int
    gb_s: float | None = None

    @property
    def is_narrow(self) -> bool:
        """True if card and slot allow more lanes."""
        return self.lanes < self.possible


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics card with its kernel driver, link and power limits; None if unknown."""

    vendor: Vendor
    pci_id: str
    driver: str | None
    link: Link | None
    power_cap_w: float | None = None
    default_power_cap_w: float | None = None


def find_cards(root: Path = Path("/")) -> tuple[Card, ...]:
    """Return the graphics cards in bus order."""
    try:
        folders = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return ()
    found = []
    for folder in folders:
        vendor = PCI_VENDORS.get(read_text(folder / "vendor"))
        if vendor is None or not read_text(folder / "class").startswith(_PCI_CLASSES):
            continue
        found.append(
            Card(
                vendor,
                folder.name,
                _driver_name(folder),
                _link(folder),
                _power_w(folder, "power1_cap"),
                _power_w(folder, "power1_cap_default"),
            )
        )
    return tuple(found)


def _driver_name(folder: Path) -> str | None:
    try:
        return (folder / "driver").readlink().name
    except OSError:
        return None


def _link(folder: Path) -> Link | None:
    """Return the narrowest of the links up to the processor.

    A large AMD card has a switch: the link of its GPU is always complete, and the link to the
    slot is further up.
    """
    chain = [folder.resolve()]
    while _PCI_ADDRESS.fullmatch(chain[-1].parent.name):
        chain.append(chain[-1].parent)
    links = []
    for below, above in zip(chain, [*chain[1:], None], strict=True):
        lanes, most = (
            read_number(below / "current_link_width"),
            read_number(below / "max_link_width"),
        )
        port = read_number(above / "max_link_width") if above else most
        # The port at the top has no device above it, and reports the same link again.
        if lanes and most and (above is not None or len(chain) == 1):
            links.append(Link(lanes, min(most, port or most), _link_gb_s(below, above, lanes)))
    if not links:
        return None
    speeds = [link.gb_s for link in links if link.gb_s is not None]
    narrowest = min(links, key=lambda link: link.lanes / link.possible)
    return replace(narrowest, gb_s=min(speeds, default=None))


def _link_gb_s(below: Path, above: Path | None, lanes: int) -> float | None:
    """Return the speed of a link: an idle card lowers its present one, so the highest counts."""
    ends = [folder for folder in (below, above) if folder is not None]
    rates = [_LINK_SPEED.match(read_text(folder / "max_link_speed")) for folder in ends]
    known = [float(rate[1]) for rate in rates if rate]
    return pcie_gb_s(lanes, gigatransfers=min(known, default=0.0))


def _power_w(folder: Path, name: str) -> float | None:
    for path in sorted(folder.glob(f"hwmon/hwmon*/{name}")):
        microwatts = read_number(path)
        if microwatts:
            return microwatts / 1e6
    return None


def find_linux_gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """Return the AMD and Intel GPUs, those of each vendor in bus order."""
    found: list[tuple[str, Vendor, float | None]] = []
    for folder in (root / "sys/class/drm").glob("card*"):
        vendor = PCI_VENDORS.get(read_text(folder / "device/vendor"))
        if vendor in ("amd", "intel") and folder.name.removeprefix("card").isdigit():
            total_mib = read_mib(folder / "device/mem_info_vram_total")
            found.append((_pci_id(folder / "device"), vendor, total_mib))
    counts: dict[Vendor, int] = {"amd": 0, "intel": 0}
    gpus = []
    for pci_id, vendor, total_mib in sorted(found, key=lambda gpu: gpu[0]):
        gpus.append(Gpu(vendor, counts[vendor], pci_id, total_mib=total_mib))
        counts[vendor] += 1
    return tuple(gpus)


def cards_with_screens(root: Path = Path("/")) -> frozenset[str]:
    """Return the PCI addresses of the cards with a connected screen."""
    connectors = (root / "sys/class/drm").glob("card*-*/status")
    return frozenset(
        _pci_id(root / "sys/class/drm" / path.parent.name.partition("-")[0] / "device")
        for path in connectors
        if read_text(path) == "connected"
    )


def _pci_id(device: Path) -> str:
    slot = read_fields(read_text(device / "uevent"), "=").get("PCI_SLOT_NAME")
    return normal_pci_id(slot or device.resolve().name)


def pci_folder(pci_id: str, root: Path = Path("/")) -> Path:
    """Return the folder of a PCI device."""
    return root / "sys/bus/pci/devices" / pci_id


def rocm_order(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the PCI addresses of AMD GPUs in ROCm's order: that of its topology nodes."""
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*")
    order = []
    for folder in sorted(
        (node for node in nodes if node.name.isdigit()), key=lambda node: int(node.name)
    ):
        fields = read_fields(read_text(folder / "properties"), " ")
        if to_number(fields.get("simd_count", "")):  # CPUs are nodes too
            location = to_number(fields.get("location_id", "")) or 0
            domain = to_number(fields.get("domain", "")) or 0
            bus, slot, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 0x7
            order.append(f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")
    return tuple(order)


def amd_states(root: Path = Path("/")) -> tuple[GpuState, ...]:
    """Return the state of each AMD GPU; its driver gives no reason for throttling."""
    return tuple(
        _amd_state(gpu.pci_id, pci_folder(gpu.pci_id, root))
        for gpu in find_linux_gpus(root)
        if gpu.vendor == "amd"
    )


def _amd_state(pci_id: str, device: Path) -> GpuState:
    sensors = next(iter(sorted(device.glob("hwmon/hwmon*"))), device / "hwmon")
    hertz = read_number(sensors / "freq1_input")
    # Of the edge, the junction and the memory.
    millidegrees = [read_number(path) for path in sensors.glob("temp*_input")]
    hottest = max((one for one in millidegrees if one is not None), default=None)
    microwatts = read_number(sensors / "power1_average") or read_number(sensors / "power1_input")
    cap = read_number(sensors / "power1_cap")
    levels = [int(mhz) for mhz in _CLOCK_LEVEL.findall(read_text(device / "pp_dpm_sclk"))]
    return GpuState(
        read_text(device / "product_name") or "AMD GPU",
        pci_id,
        clock_mhz=None if hertz is None else hertz // 1_000_000,
        max_clock_mhz=max(levels, default=None),
        temperature_c=None if hottest is None else hottest // 1000,
        power_w=None if microwatts is None else microwatts / 1e6,
        power_cap_w=None if cap is None else cap / 1e6,
        busy_percent=read_number(device / "gpu_busy_percent"),
    )


@dataclass(frozen=True, slots=True)
class AmdMemory:
    """A source of memory counters of AMD GPUs, which reads a folder of /sys for each device.

    On a device with unified memory the graphics translation table (host memory that the GPU may
    use) counts too, because the reserved part alone is small. A discrete device `X` has a second
    counter `X.gtt`: that host memory grows when the driver moves video memory out.
    """

    folders: Mapping[str, Path]
    unified: frozenset[str] = frozenset()

    def read(self) -> dict[str, MemoryCounter]:
        """Return used and free memory now."""
        found = {}
        for name, folder in self.folders.items():
            video, table = _amd_counter(folder, "vram"), _amd_counter(folder, "gtt")
            if name in self.unified:
                found[name] = _add(video, table)
            else:
                found[name] = video if video.free_mib is not None else UNKNOWN
                if table.used_mib is not None:
                    found[f"{name}.gtt"] = table
        return found


def _add(one: MemoryCounter, other: MemoryCounter) -> MemoryCounter:
    numbers = [mib for mib in (*one, *other) if mib is not None]
    if len(numbers) < len(one) + len(other):
        return UNKNOWN
    used, free, other_used, other_free = numbers
    return MemoryCounter(used + other_used, free + other_free)


def _amd_counter(folder: Path, kind: str) -> MemoryCounter:
    used = read_mib(folder / f"mem_info_{kind}_used")
    total = read_mib(folder / f"mem_info_{kind}_total")
    return MemoryCounter(used, None if used is None or total is None else total - used)


class IntelMemory:
    """A source of the memory that our own processes use on Intel GPUs; free memory is unknown."""

    def __init__(
        self,
        pci_ids: Mapping[str, str],
        *,
        pids: Callable[[], Iterable[int]] | None = None,
        root: Path = Path("/"),
    ) -> None:
        """Watch `pids` (default: our descendants); `pci_ids` maps device names to addresses."""
        self._pci_ids = {name: normal_pci_id(text) for name, text in pci_ids.items()}
        self._pids = pids or _descendants()
        self._root = root

    def read(self) -> dict[str, MemoryCounter]:
        """Return the memory used now, or None if no process of ours has the GPU open."""
        # Several file descriptors can belong to one client of a GPU.
        clients = {
            (pci_id, number): mib for pid in self._pids() for pci_id, number, mib in self._of(pid)
        }
        used: dict[str, float] = {}
        for (pci_id, _), mib in clients.items():
            used[pci_id] = used.get(pci_id, 0.0) + mib
        return {
            name: MemoryCounter(used.get(pci_id), None) for name, pci_id in self._pci_ids.items()
        }

    def _of(self, pid: int) -> Iterator[tuple[str, str, float]]:
        """Yield the PCI address, the number and the resident MiB of a process's clients."""
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
            fields = read_fields(read_text(folder / "fdinfo" / number), ":")
            if "drm-client-id" in fields:
                mib = sum(_to_mib(v) for k, v in fields.items() if k.startswith(_DRM_MEMORY))
                yield normal_pci_id(fields.get("drm-pdev", "")), fields["drm-client-id"], mib


def _to_mib(value: str) -> float:
    number, _, unit = value.partition(" ")
    return (to_number(number) or 0) * _MIB_PER_UNIT.get(unit, 0.0)


def _descendants() -> Callable[[], Iterable[int]]:
    """Return a function that lists autofit's child processes, refreshed every few seconds."""
    found: list[int] = []
    next_s = 0.0

    def pids() -> Iterable[int]:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + _FIND_CHILDREN_EVERY_S
            found[:] = [child.pid for child in psutil.Process().children(recursive=True)]
        return found

    return pids


def closed_device_files(patterns: Sequence[str], root: Path = Path("/")) -> tuple[Path, ...]:
    """Return the existing device files that this user may not open."""
    found = (path for pattern in patterns for path in sorted(root.glob(pattern.lstrip("/"))))
    return tuple(path for path in found if not os.access(path, os.R_OK | os.W_OK))
