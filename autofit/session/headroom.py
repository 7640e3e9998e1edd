"""The memory that is to stay free on each device.

A device's `usable_mib` does not contain it. So predictions, layouts and boundaries all count it,
and a launch that leaves less does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autofit.trial.device import Device

# A desktop with a browser and a video takes some hundred MiB more at times.
DESKTOP_MIB = 512.0
# Elsewhere this share is kept, up to the limit: launches that left 40 to 130 MiB of a card ran at
# full context, one that left 66 MiB failed.
SMALL_SHARE = 0.005
SMALL_MIB = 128.0


def with_headroom(devices: Sequence[Device], headroom_mib: float | None) -> tuple[Device, ...]:
    """Return the devices with less usable memory; None keeps the default of each device."""
    found = []
    for device in devices:
        mib = _default_mib(device) if headroom_mib is None else headroom_mib
        found.append(
            replace(device, usable_mib=max(0.0, device.usable_mib - mib), headroom_mib=mib)
        )
    return tuple(found)


def _default_mib(device: Device) -> float:
    if device.has_display:
        return DESKTOP_MIB
    return min(SMALL_MIB, SMALL_SHARE * device.usable_mib)
