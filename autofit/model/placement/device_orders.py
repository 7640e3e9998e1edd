"""The devices of layouts: all of them, the fastest link first, and all but the weakest."""

from __future__ import annotations

from collections.abc import Sequence

from autofit.trial.device import Device

# Links that differ less are equal: a longer chain of launches costs more than it may gain.
_FASTER_LINK = 1.25
# A device is the weakest if its link or its memory is below this share of all others'.
_WEAK_SHARE = 0.7
_FEWEST_TO_LEAVE_ONE_OUT = 3


def device_orders(
    devices: Sequence[Device], *, is_order_chosen: bool = False
) -> tuple[tuple[Device, ...], ...]:
    """Return the devices in the orders that are worth a layout, the given order first.

    The runtime computes large batches on host experts on the first device. So the device with
    the fastest link comes first in another order, unless the user has chosen one. Of three
    or more devices one that is much weaker than all others is also left out.
    """
    orders = [tuple(devices)]
    links = [device.link_gb_s for device in devices if device.link_gb_s]
    is_known = len(links) == len(devices) > 1
    if is_known and not is_order_chosen and max(links) >= _FASTER_LINK * links[0]:
        orders.append(tuple(sorted(devices, key=lambda device: -(device.link_gb_s or 0.0))))
    weakest = _weakest(devices)
    if weakest is not None:
        orders.append(tuple(device for device in orders[-1] if device != weakest))
    return tuple(orders)


def _weakest(devices: Sequence[Device]) -> Device | None:
    """Return the device that is much weaker than all others of at least three, or None."""
    if len(devices) < _FEWEST_TO_LEAVE_ONE_OUT:
        return None
    by_memory = sorted(devices, key=lambda device: device.total_mib)
    if all(device.link_gb_s for device in devices):
        by_link = sorted(devices, key=lambda device: device.link_gb_s or 0.0)
        slowest, next_slowest = (device.link_gb_s or 0.0 for device in by_link[:2])
        if slowest < _WEAK_SHARE * next_slowest:
            return by_link[0]
    smallest, next_smallest = (device.total_mib for device in by_memory[:2])
    return by_memory[0] if smallest < _WEAK_SHARE * next_smallest else None
