"""A physical GPU of any vendor: its identity and its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Vendor = Literal["nvidia", "amd", "intel"]
PCI_VENDORS: dict[str, Vendor] = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine; `index` counts the GPUs of its vendor in bus order."""

    vendor: Vendor
    index: int
    pci_id: str
    name: str = ""
    total_mib: float | None = None
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class GpuState:
    """The state of a GPU at one moment; a field is None if unknown.

    `throttled_by` are the reasons, other than idleness, for a reduced clock.
    """

    name: str
    pci_id: str
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_cap_w: float | None = None
    default_power_cap_w: float | None = None
    busy_percent: int | None = None
    throttled_by: tuple[str, ...] = ()


# Bits per second and lane of the generations of PCI Express, in thousand millions. The first two
# generations send 10 bits for 8, and copies reach about 80% of what the others offer.
_GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_CODED_SHARE, _SLOW_CODED_SHARE, _FASTEST_SLOW = 0.98, 0.8, 5.0
_COPIED_SHARE = 0.8


def pcie_gb_s(lanes: int, *, gigatransfers: float = 0.0, generation: int = 0) -> float | None:
    """Return the speed of copies over a PCI Express link, in GB/s, or None if it is unknown."""
    rate = gigatransfers or _GIGATRANSFERS.get(generation, 0.0)
    if lanes <= 0 or rate <= 0:
        return None
    share = _SLOW_CODED_SHARE if rate <= _FASTEST_SLOW else _CODED_SHARE
    return round(lanes * rate / 8 * share * _COPIED_SHARE, 1)


def normal_pci_id(text: str) -> str:
    """Return a PCI address in Linux notation: `0000:01:00.0` for `00000000:01:00.0` or `1:0.0`.

    Any other text is returned in lower case.
    """
    domain_bus, _, device = text.strip().lower().rpartition(":")
    domain, _, bus = domain_bus.rpartition(":")
    slot, _, function = device.partition(".")
    try:
        return (
            f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}"
            f":{int(slot, 16):02x}.{int(function or '0', 16):x}"
        )
    except ValueError:
        return text.strip().lower()
