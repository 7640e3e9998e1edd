"""Graphics cards on the PCI bus, whether a driver drives them or not, and their links.

Linux only; elsewhere there are none to be seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from autofit.machine.gpu import Vendor

VENDORS: dict[str, Vendor] = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
# PCI classes: VGA, 3D and other display controllers, and processing accelerators.
_CLASSES = ("0x03", "0x12")
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


@dataclass(frozen=True, slots=True)
class Link:
    """The narrowest link between a card and the processor, in lanes; `possible` by both ends."""

    lanes: int
    possible: int

    @property
    def is_narrow(self) -> bool:
        """Whether card and slot could do more."""
        return self.lanes < self.possible


@dataclass(frozen=True, slots=True)
class Card:
    """One card; `driver` is the kernel's, None without one, `link` None where it is not told.

    `power_cap_w` is what the card may draw, `default_power_cap_w` what it is made for.
    """

    vendor: Vendor
    pci_id: str
    driver: str | None
    link: Link | None
    power_cap_w: float | None = None
    default_power_cap_w: float | None = None


def cards(root: Path = Path("/")) -> tuple[Card, ...]:
    """The graphics cards in order of the bus."""
    try:
        folders = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return ()
    found = []
    for folder in folders:
        vendor = VENDORS.get(_read(folder / "vendor"))
        if vendor is None or not _read(folder / "class").startswith(_CLASSES):
            continue
        found.append(
            Card(
                vendor,
                folder.name,
                _driver(folder),
                _link(folder),
                _watts(folder, "power1_cap"),
                _watts(folder, "power1_cap_default"),
            )
        )
    return tuple(found)


def _driver(folder: Path) -> str | None:
    try:
        return (folder / "driver").readlink().name
    except OSError:
        return None


def _link(folder: Path) -> Link | None:
    """The narrowest of the links up to the processor.

    A large AMD card has a switch on it: the link of the GPU itself is always whole, the one
    to the slot is further up.
    """
    chain = [folder.resolve()]
    while _ADDRESS.fullmatch(chain[-1].parent.name):
        chain.append(chain[-1].parent)
    links = []
    for below, above in zip(chain, [*chain[1:], None], strict=True):
        lanes, most = _number(below / "current_link_width"), _number(below / "max_link_width")
        port = _number(above / "max_link_width") if above else most
        # The port at the top has no device above it, and tells of the same link again.
        if lanes and most and (above is not None or len(chain) == 1):
            links.append(Link(lanes, min(most, port or most)))
    return min(links, key=lambda link: link.lanes / link.possible, default=None)


def _watts(folder: Path, name: str) -> float | None:
    for path in sorted(folder.glob(f"hwmon/hwmon*/{name}")):
        microwatts = _number(path)
        if microwatts:
            return microwatts / 1e6
    return None


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
