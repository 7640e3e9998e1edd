"""Waiting until a device has released memory."""

from __future__ import annotations

import pytest
from machine.memory_sample import Clock, Recorded, used

from autofit.machine.memory_counter import MemoryCounter, wait_for_release


def test_memory_that_is_released_late():
    """Memory that a driver releases late is waited for, without a notice."""
    clock = Clock()
    source = Recorded(used(A=900), used(A=500), used(A=110))

    release = wait_for_release(source, {"A": 100}, clock=clock, sleep=clock.sleep)

    assert release.is_complete
    assert release.waited_s == pytest.approx(0.5)
    assert release.reference_mib == {"A": 100}
    assert release.notice == ""


def test_memory_that_is_not_released_changes_the_reference():
    """Memory that stays used after the limit is in the notice and the new reference."""
    clock = Clock()
    source = Recorded(used(A=900, B=10))

    release = wait_for_release(
        source, {"A": 100, "B": 10}, limit_s=30, clock=clock, sleep=clock.sleep
    )

    assert not release.is_complete
    assert release.waited_s == pytest.approx(30, abs=1)
    assert release.reference_mib == {"A": 900, "B": 10}
    assert "800 MiB on A" in release.notice


def test_devices_without_a_counter_are_ignored():
    """An unknown counter is not waited for."""
    clock = Clock()
    source = Recorded({"A": MemoryCounter(None, None), "B": MemoryCounter(500, None)})

    release = wait_for_release(source, {"A": 1, "B": None}, clock=clock, sleep=clock.sleep)

    assert (release.is_complete, release.waited_s) == (True, 0.0)
