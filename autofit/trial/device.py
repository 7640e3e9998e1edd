"""A device as the runtime names it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# The lowest compute capability of NVIDIA cards with matrix cores.
_MATRIX_CORES = 7.0
HOST_NAME = "host"  # the name of the host's memory among devices


@dataclass(frozen=True, slots=True)
class Device:
    """One compute device, as the runtime describes it.

    `usable_mib` is the memory that a candidate may take: what the user allowed, or else what was
    free before autofit started a server. `headroom_mib`, which must stay free, is subtracted from
    it. `has_display` marks a card with a screen, `is_unified` memory shared with the host.
    `link_gb_s` is the speed of copies from the host, and `compute_capability` CUDA's version of
    the card's abilities, such as 8.6; both are None if unknown.
    """

    name: str
    description: str
    total_mib: float
    usable_mib: float
    is_unified: bool = False
    link_gb_s: float | None = None
    compute_capability: float | None = None
    has_display: bool = False
    headroom_mib: float = 0.0

    @property
    def allowed_mib(self) -> float:
        """The usable memory and the headroom."""
        return self.usable_mib + self.headroom_mib


def lacks_matrix_cores(device: Device) -> bool | None:
    """Return whether a card has no matrix cores, or None if that is unknown."""
    capability = device.compute_capability
    return None if capability is None else capability < _MATRIX_CORES


def backend_of(device_name: str) -> str:
    """Return the backend in a device's name: `CUDA` for `CUDA0`."""
    return re.sub(r"\d+$", "", device_name)
