"""The orders of devices that are worth a layout."""

from __future__ import annotations

import pytest

from autofit.model.placement.device_orders import device_orders
from autofit.trial.device import Device


def devices(*links: float | None, mib: tuple[float, ...] = ()) -> tuple[Device, ...]:
    """Devices A, B, ... with these links and, if given, memory."""
    sizes = mib or (12288.0,) * len(links)
    return tuple(
        Device("ABCD"[at], "card", size, size, link_gb_s=link)
        for at, (link, size) in enumerate(zip(links, sizes, strict=True))
    )


@pytest.mark.parametrize(
    ("found", "orders"),
    [
        (devices(3.0, 24.0), ["AB", "BA"]),
        (devices(24.0, 3.0), ["AB"]),
        (devices(24.0, 26.0), ["AB"]),  # equal links
        (devices(3.0, None), ["AB"]),  # an unknown one
        (devices(3.0), ["A"]),
        (devices(12.0, 3.0, 24.0), ["ABC", "CAB", "CA"]),
        (devices(24.0, 24.0, 6.0), ["ABC", "AB"]),
        (devices(None, None, None, mib=(24576, 8192, 24576)), ["ABC", "AC"]),
        (devices(None, None, None), ["ABC"]),
        (devices(24.0, 12.0, mib=(24576, 8192)), ["AB"]),  # a single device is a layout anyway
    ],
)
def test_the_fastest_link_comes_first_and_the_weakest_device_is_left_out(found, orders):
    """The given order comes first; another one only where links or devices differ much."""
    named = ["".join(device.name for device in order) for order in device_orders(found)]

    assert named == orders


def test_an_order_that_the_user_chose_stays():
    """Devices named by the user are used in their order."""
    assert device_orders(devices(3.0, 24.0), is_order_chosen=True) == (devices(3.0, 24.0),)
