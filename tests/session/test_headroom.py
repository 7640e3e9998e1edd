"""Headroom: the memory that stays free on each device."""

from __future__ import annotations

import pytest

from autofit.errors import UsageError
from autofit.session.headroom import DESKTOP_MIB, SMALL_MIB, with_headroom
from autofit.session.task_options import parse_headroom
from autofit.trial.device import Device


@pytest.mark.parametrize(
    ("usable_mib", "has_display", "given", "headroom_mib"),
    [
        (12_000.0, True, None, DESKTOP_MIB),
        (12_000.0, False, None, 60.0),
        (80_000.0, False, None, SMALL_MIB),
        (12_000.0, True, 0.0, 0.0),
        (12_000.0, False, 700.0, 700.0),
    ],
)
def test_the_usable_memory_is_less_by_the_headroom(usable_mib, has_display, given, headroom_mib):
    """A card with a screen keeps room for a desktop, another a little, unless a size is given."""
    card = Device("CUDA0", "a card", 90_000.0, usable_mib, has_display=has_display)
    (found,) = with_headroom([card], given)

    assert found.headroom_mib == pytest.approx(headroom_mib)
    assert found.usable_mib == pytest.approx(usable_mib - headroom_mib)
    assert found.allowed_mib == pytest.approx(usable_mib)


def test_no_memory_is_usable_below_the_headroom():
    """A full card has no usable memory, and not less than none."""
    assert with_headroom([Device("CUDA0", "", 1000.0, 100.0)], 500.0)[0].usable_mib == 0


def test_sizes_have_units():
    """A plain number is MiB; anything else is an error."""
    assert parse_headroom("0") == 0
    assert parse_headroom("500MiB") == parse_headroom("500") == 500
    assert parse_headroom("1GiB") == 1024
    for text in ("-1", "much", "5%"):
        with pytest.raises(UsageError, match="--headroom"):
            parse_headroom(text)
