"""Spilled memory and refused prefetch slots, as memory counters show them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.runtime.diagnosis.memory_evidence import (
    ExpectedSlots,
    ExpectedUsage,
    find_refused_slots,
    find_shared_devices,
    find_spill,
    is_steady,
    launch_usage_mib,
)
from autofit.trial.device import Device
from autofit.trial.measurement import MemoryReading

TOTAL = 12288.0


def reading(used: float | None, *, name: str = "CUDA0", lent: float | None = None):
    """Return a reading of the counters."""
    counters = {name: used} | ({f"{name}.gtt": lent} if lent is not None else {})
    free = {name: None if used is None else TOTAL - used}
    return MemoryReading(at_s=0.0, device_used_mib=counters, device_free_mib=free)


def launch(peak: float | None, *, before: float | None = 500.0, after: float | None = 500.0):
    """Return readings before a launch, at its peak and after its stop."""
    return (reading(before), reading(peak), reading(after))


def expected(buffers: float, unreported: float | None = None, *, shared: bool = False):
    """Return the expected usage of CUDA0."""
    return ExpectedUsage(
        device="CUDA0", buffers_mib=buffers, unreported_mib=unreported, is_shared=shared
    )


def test_full_device_that_uses_less_than_its_buffers_has_spilled():
    """A full device that uses less than the reported buffers has spilled."""
    spill = find_spill(launch(TOTAL - 100), [expected(12000)])

    assert spill.device == "CUDA0"
    assert spill.spilled_mib == 12000 - (TOTAL - 100 - 500)
    assert spill.kind == "spilled"


def test_full_device_with_all_expected_memory_has_not_spilled():
    """A device that is full to the last byte has not spilled."""
    assert find_spill(launch(TOTAL), [expected(TOTAL - 500 - 600, 600)]) is None


def test_unreported_memory_counts():
    """Driver context and pools show a spill that the buffers alone do not."""
    readings = launch(TOTAL - 20)

    assert find_spill(readings, [expected(11500)]) is None
    assert find_spill(readings, [expected(11500, 600)]).spilled_mib == 11500 + 600 - (
        TOTAL - 20 - 500
    )


def test_device_with_room_has_not_spilled():
    """A device with free memory has not spilled, since drivers allocate late."""
    assert find_spill(launch(6000), [expected(9000, 500)]) is None


def test_slow_launch_without_missing_memory_has_not_spilled():
    """A slow launch without missing memory has not spilled."""
    readings = launch(TOTAL - 50)

    assert find_spill(readings, [expected(TOTAL - 50 - 500 - 600, 600)], slowdown=12.0) is None


def test_brimful_device_needs_little_missing_memory():
    """A device that is full to the last bytes has spilled if only a little memory is missing."""
    short = [expected(TOTAL - 500 - 600 + 40, 600)]

    assert find_spill(launch(TOTAL - 5), short).spilled_mib == 45
    assert find_spill(launch(TOTAL - 50), short) is None


def test_slow_launch_needs_less_missing_memory():
    """If a launch is also far slower than others, less missing memory is a spill."""
    readings = launch(TOTAL - 50)
    short = [expected(TOTAL - 50 - 500 - 600 + 80, 600)]

    assert find_spill(readings, short) is None
    assert find_spill(readings, short, slowdown=1.1) is None
    assert find_spill(readings, short, slowdown=2.0).spilled_mib == 80


def test_device_that_is_not_full_needs_two_signs():
    """Missing memory of a device that is not full is a spill only in a slow launch."""
    readings = launch(8000)

    assert find_spill(readings, [expected(8000, 500)]) is None
    assert find_spill(readings, [expected(8000, 500)], slowdown=4.0).spilled_mib == 1000


def test_host_memory_of_a_full_device_is_a_spill():
    """The driver's counter of host memory is enough for a full device."""
    readings = (reading(500, lent=60), reading(TOTAL - 100, lent=960), reading(500, lent=60))

    spill = find_spill(readings, [expected(9000)])

    assert spill.spilled_mib == 900
    assert find_spill(readings, [expected(9000)], pinned_mib=850) is None


def test_host_memory_of_a_device_that_is_not_full_is_no_spill():
    """Pinned host weights count in the driver's counter, and are not a spill."""
    readings = (reading(500, lent=60), reading(6000, lent=20060), reading(500, lent=60))

    assert find_spill(readings, [expected(5000)]) is None


def test_shared_memory_never_spills():
    """A device that shares the host's memory never has a spill."""
    readings = launch(TOTAL - 10)

    assert find_spill(readings, [expected(30000, 600, shared=True)], slowdown=9.0) is None


def test_unified_and_remote_devices_are_shared():
    """Devices with unified memory and remote devices are shared."""
    devices = [
        Device("CUDA0", "RTX 3060", 12288, 12000),
        Device("MTL0", "Apple M3", 24000, 20000, is_unified=True),
        Device("RPC0", "127.0.0.1:50052", 8000, 8000),
    ]

    assert find_shared_devices(devices) == {"MTL0", "RPC0"}


def test_missing_counters_show_no_spill():
    """Without a counter there is no spill and no usage."""
    assert find_spill(launch(None, before=None, after=None), [expected(20000)]) is None
    assert find_spill((), [expected(20000)]) is None
    assert launch_usage_mib(launch(None, before=None, after=None), "CUDA0") is None


def test_memory_freed_by_another_program_counts_as_usage():
    """Memory that another program frees counts as used, which avoids a false spill."""
    readings = launch(TOTAL - 300, before=2500, after=500)

    assert launch_usage_mib(readings, "CUDA0") == TOTAL - 300 - 500
    assert find_spill(readings, [expected(11200, 200)]) is None


def test_launch_is_not_steady_if_other_memory_changes():
    """A launch is not steady if others use more or less memory after it."""
    assert is_steady(launch(9000), "CUDA0")
    assert not is_steady(launch(9000, before=500, after=1300), "CUDA0")
    assert not is_steady(launch(9000, before=1300, after=500), "CUDA0")
    assert not is_steady(launch(None, before=None, after=None), "CUDA0")


@given(
    capacity=st.floats(4000, 48000),
    floor=st.floats(0, 2000),
    other=st.floats(0, 900),
    error=st.floats(-30, 30),
    share=st.floats(0.05, 1.6),
)
def test_spill_is_found_if_and_only_if_there_is_one(capacity, floor, other, error, share):
    """No spill is found if everything fits, and every spill of 300 MiB or more is found."""
    buffers = share * capacity
    needed = floor + buffers + other
    used = min(capacity, needed)
    readings = tuple(
        MemoryReading(0.0, {"CUDA0": mib}, {"CUDA0": capacity - mib})
        for mib in (floor, used, floor)
    )

    spill = find_spill(readings, [expected(buffers, max(0.0, other + error))])

    if needed <= capacity:
        assert spill is None
    elif needed - capacity >= 300 and used > floor:
        assert spill is not None


CARD_MIB = 8000.0
SLOTS = ExpectedSlots(device="CUDA0", count=4, slot_mib=200.0, unreported_mib=500.0)


def readings(taken: float, before: float = 100.0) -> list[MemoryReading]:
    """Return readings of a device before a launch, at its peak and after it."""
    return [
        MemoryReading(0.0, {"CUDA0": used}, {"CUDA0": CARD_MIB - used})
        for used in (before, before + taken, before)
    ]


def found(taken: float, refused: tuple[float, ...] = (200.0,), slots: ExpectedSlots = SLOTS):
    """Return the outcome of a launch with buffers of 6800 MiB and this usage."""
    return find_refused_slots(readings(taken), slots, buffers_mib=6800.0, refused_mib=refused)


@pytest.mark.parametrize(
    ("taken", "count"),
    [(7730.0, ": 2 allocated"), (7890.0, ": 3 allocated"), (7510.0, ": 0 allocated")],
)
def test_refused_slots_are_out_of_memory(taken, count):
    """The used memory shows the number of slots; a single slot is freed."""
    outcome = found(taken)

    assert (outcome.kind, outcome.stage, outcome.device) == ("out_of_memory", "prompt", "CUDA0")
    assert outcome.requested_mib == 200.0
    assert count in outcome.evidence


def test_only_a_refusal_of_the_size_of_a_slot_counts():
    """Failed allocations of another size are not slots."""
    assert found(7730.0, refused=(3100.0,)) is None
    assert found(7300.0, refused=()) is None


def test_free_memory_shows_a_successful_retry():
    """A device with memory for two more slots at its peak has all slots."""
    assert found(7400.0) is None


def test_number_of_slots_can_be_unknown():
    """Without a counter, or without a reference, the number of slots is not known."""
    unknown = [MemoryReading(0.0, {"CUDA0": None}, {"CUDA0": None})] * 2
    outcome = find_refused_slots(unknown, SLOTS, buffers_mib=6800.0, refused_mib=[200.0])

    assert "fewer" in outcome.evidence
    assert "fewer" in found(7730.0, slots=replace(SLOTS, unreported_mib=None)).evidence
