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
    """What the counters said at one moment."""
    counters = {name: used} | ({f"{name}.gtt": lent} if lent is not None else {})
    free = {name: None if used is None else TOTAL - used}
    return MemoryReading(at_s=0.0, device_used_mib=counters, device_free_mib=free)


def launch(peak: float | None, *, before: float | None = 500.0, after: float | None = 500.0):
    """Readings of a launch: before, at its peak, after its stop."""
    return (reading(before), reading(peak), reading(after))


def holding(buffers: float, unreported: float | None = None, *, shared: bool = False):
    """What CUDA0 was to hold."""
    return ExpectedUsage(
        device="CUDA0", buffers_mib=buffers, unreported_mib=unreported, is_shared=shared
    )


def test_full_device_that_holds_less_than_its_buffers_has_spilled():
    """The runtime's own figures are enough where they exceed what the device took."""
    spill = find_spill(launch(TOTAL - 100), [holding(12000)])

    assert spill.device == "CUDA0"
    assert spill.mib == 12000 - (TOTAL - 100 - 500)
    assert "12000 MiB" in spill.evidence
    assert spill.outcome.kind == "spilled"


def test_full_device_that_holds_all_of_it_has_not_spilled():
    """A device may be filled to the last byte."""
    assert find_spill(launch(TOTAL), [holding(TOTAL - 500 - 600, 600)]) is None


def test_what_earlier_launches_took_beside_buffers_counts():
    """Driver context and pools show a spill that buffers alone would hide."""
    readings = launch(TOTAL - 20)

    assert find_spill(readings, [holding(11500)]) is None
    assert find_spill(readings, [holding(11500, 600)]).mib == 11500 + 600 - (TOTAL - 20 - 500)


def test_device_with_room_has_not_spilled():
    """Memory that is not needed at once is handed out late, where there is enough of it."""
    assert find_spill(launch(6000), [holding(9000, 500)]) is None


def test_slow_launch_without_missing_memory_has_not_spilled():
    """A slow candidate is a slow candidate."""
    readings = launch(TOTAL - 50)

    assert find_spill(readings, [holding(TOTAL - 50 - 500 - 600, 600)], slowdown=12.0) is None


def test_device_full_to_the_last_byte_that_lacks_a_little_has_spilled():
    """Nothing comes out even by chance."""
    lacking = [holding(TOTAL - 500 - 600 + 40, 600)]

    assert find_spill(launch(TOTAL - 5), lacking).mib == 45
    assert find_spill(launch(TOTAL - 50), lacking) is None


def test_slowness_makes_a_small_lack_tell():
    """Where a launch is far slower than its neighbours too, less must be missing."""
    readings = launch(TOTAL - 50)
    lacking = [holding(TOTAL - 50 - 500 - 600 + 80, 600)]

    assert find_spill(readings, lacking) is None
    assert find_spill(readings, lacking, slowdown=1.1) is None
    assert find_spill(readings, lacking, slowdown=2.0).mib == 80


def test_memory_moved_out_of_a_device_that_is_not_full_wants_two_signs():
    """A driver may move memory for another program's sake; then the launch is slow."""
    readings = launch(8000)

    assert find_spill(readings, [holding(8000, 500)]) is None
    assert find_spill(readings, [holding(8000, 500)], slowdown=4.0).mib == 1000


def test_host_memory_lent_to_a_full_device_is_spilled():
    """The driver's own counter of host memory in a device's place tells by itself."""
    readings = (reading(500, lent=60), reading(TOTAL - 100, lent=960), reading(500, lent=60))

    spill = find_spill(readings, [holding(9000)])

    assert spill.mib == 900
    assert find_spill(readings, [holding(9000)], pinned_mib=850) is None


def test_lent_memory_of_a_device_with_room_is_the_runtimes_own():
    """Pinned host weights are counted there too."""
    readings = (reading(500, lent=60), reading(6000, lent=20060), reading(500, lent=60))

    assert find_spill(readings, [holding(5000)]) is None


def test_shared_memory_never_spills():
    """Where device and host share memory, used memory says nothing."""
    readings = launch(TOTAL - 10)

    assert find_spill(readings, [holding(30000, 600, shared=True)], slowdown=9.0) is None


def test_unified_and_remote_devices_are_shared():
    """A remote device's counter is that of a process which touches its memory late."""
    devices = [
        Device("CUDA0", "RTX 3060", 12288, 12000),
        Device("MTL0", "Apple M3", 24000, 20000, is_unified=True),
        Device("RPC0", "127.0.0.1:50052", 8000, 8000),
    ]

    assert find_shared_devices(devices) == {"MTL0", "RPC0"}


def test_missing_counters_tell_nothing():
    """None is not 0."""
    assert find_spill(launch(None, before=None, after=None), [holding(20000)]) is None
    assert find_spill((), [holding(20000)]) is None
    assert launch_usage_mib(launch(None, before=None, after=None), "CUDA0") is None


def test_program_that_ends_meanwhile_hides_nothing_of_ours():
    """What another program gave back is taken for ours, so that no spill is claimed."""
    readings = launch(TOTAL - 300, before=2500, after=500)

    assert launch_usage_mib(readings, "CUDA0") == TOTAL - 300 - 500
    assert find_spill(readings, [holding(11200, 200)]) is None


def test_launch_beside_another_program_teaches_nothing():
    """What it added cannot be told from what the other took, or gave back."""
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
def test_spill_is_told_exactly_where_there_is_one(capacity, floor, other, error, share):
    """Over machines and loads: none claimed where all fits, none of 300 MiB or more missed."""
    buffers = share * capacity
    wanted = floor + buffers + other
    used = min(capacity, wanted)
    readings = tuple(
        MemoryReading(0.0, {"CUDA0": mib}, {"CUDA0": capacity - mib})
        for mib in (floor, used, floor)
    )

    spill = find_spill(readings, [holding(buffers, max(0.0, other + error))])

    if wanted <= capacity:
        assert spill is None
    elif wanted - capacity >= 300 and used > floor:
        assert spill is not None


CARD_MIB = 8000.0
WANTED = ExpectedSlots(device="CUDA0", count=4, slot_mib=200.0, unreported_mib=500.0)


def readings(taken: float, before: float = 100.0) -> list[MemoryReading]:
    """A device before, at the peak of, and after a launch."""
    return [
        MemoryReading(0.0, {"CUDA0": used}, {"CUDA0": CARD_MIB - used})
        for used in (before, before + taken, before)
    ]


def found(taken: float, refused: tuple[float, ...] = (200.0,), wanted: ExpectedSlots = WANTED):
    """What comes of a launch with buffers of 6800 MiB that took so much."""
    return find_refused_slots(readings(taken), wanted, buffers_mib=6800.0, refused_mib=refused)


@pytest.mark.parametrize(
    ("taken", "told"),
    [(7730.0, ": 2 allocated"), (7890.0, ": 3 allocated"), (7510.0, ": 0 allocated")],
)
def test_a_refused_slot_is_memory_that_was_lacking(taken, told):
    """The device's memory tells how many are there; one alone is given back."""
    outcome = found(taken)

    assert (outcome.kind, outcome.stage, outcome.device) == ("out_of_memory", "prompt", "CUDA0")
    assert outcome.requested_mib == 200.0
    assert told in outcome.evidence


def test_no_refusal_of_that_size_is_no_sign():
    """A compute buffer is tried larger than it fits, too; and slots may never be asked for."""
    assert found(7730.0, refused=(3100.0,)) is None
    assert found(7300.0, refused=()) is None


def test_room_for_what_was_refused_tells_that_it_was_asked_for_again():
    """A device with room for two more slots at its peak has all of them."""
    assert found(7400.0) is None


def test_without_a_counter_the_line_alone_tells():
    """How many slots there are is then not known."""
    told = ": fewer allocated"
    unknown = [MemoryReading(0.0, {"CUDA0": None}, {"CUDA0": None})] * 2
    outcome = find_refused_slots(unknown, WANTED, buffers_mib=6800.0, refused_mib=[200.0])

    assert told in outcome.evidence
    assert told in found(7730.0, wanted=replace(WANTED, unreported_mib=None)).evidence
