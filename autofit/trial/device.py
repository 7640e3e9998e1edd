"""A device as the runtime names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One compute device, in the runtime's own words.

    `usable_mib` is what a candidate may take: the user's figure where given, else what was
    free when no server of ours ran. `is_unified` marks memory shared with the host.
    """

    name: str
    description: str
    total_mib: float
    usable_mib: float
    is_unified: bool = False
