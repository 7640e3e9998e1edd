"""A physical GPU, whatever found it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Vendor = Literal["nvidia", "amd", "intel"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of this machine; `index` counts the vendor's GPUs in order of the bus."""

    vendor: Vendor
    index: int
    pci_id: str
    name: str = ""
    total_mib: float | None = None
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class GpuState:
    """What a GPU does at one moment; None where it does not tell.

    `throttled_by` are the reasons for which it runs slower than it could, idleness left out.
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
    pcie_generation: int | None = None
    pcie_width: int | None = None
    throttled_by: tuple[str, ...] = ()


def normal_pci_id(text: str) -> str:
    """A PCI address as Linux writes it: `0000:01:00.0`, from `00000000:01:00.0` or `1:0.0`.

    Text that is no such address comes back as it is, in small letters.
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
