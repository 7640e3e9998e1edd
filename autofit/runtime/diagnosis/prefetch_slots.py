"""Prefetch slots that a runtime was refused, and went on with fewer.

Slots are allocated at the first large batch. Where they do not fit some builds die; others
keep what they got, two at least, or prefetch nothing, and say so by no more than the backend's
line of a refused allocation, which is as large as a slot. How many they got is told by the
device's memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autofit.runtime.diagnosis.spill import free_at_peak_mib, taken_mib
from autofit.trial.measurement import MemoryReading
from autofit.trial.outcome import OutOfMemory

# A log tells a size with two decimals, and buffers are padded.
_SAME_MIB = 1.0
# Fewer slots than these are given back.
_LEAST_SLOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSlots:
    """The slots a launch is to take on a device, each of the same size.

    `beside_mib` is what a launch without them takes of the device beside the runtime's
    buffers, None where it is not known.
    """

    device: str
    count: int
    slot_mib: float
    beside_mib: float | None = None


def find_refused_slots(
    readings: Sequence[MemoryReading],
    wanted: WantedSlots,
    *,
    buffers_mib: float,
    refused_mib: Sequence[float],
) -> OutOfMemory | None:
    """What came of a launch whose slots did not all fit; None where they did.

    Args:
        readings: from before the launch to after its stop.
        wanted: the slots.
        buffers_mib: the runtime's own buffers on the device.
        refused_mib: the allocations that were refused while the server ran on.
    """
    if not any(abs(mib - wanted.slot_mib) <= _SAME_MIB for mib in refused_mib):
        return None
    free_mib = free_at_peak_mib(readings, wanted.device)
    if free_mib is not None and free_mib >= _LEAST_SLOTS * wanted.slot_mib:
        return None  # there was room when it was asked for again
    got = taken_slots(readings, wanted, buffers_mib)
    told = "fewer were" if got is None else "none was" if not got else f"{got} were"
    text = (
        f"{wanted.device} had no room for {wanted.count} prefetch slots of "
        f"{wanted.slot_mib:.0f} MiB: {told} taken, without a word"
    )
    return OutOfMemory("prompt", text, "device", "pool", wanted.device, wanted.slot_mib)


def taken_slots(
    readings: Sequence[MemoryReading], wanted: WantedSlots, buffers_mib: float
) -> int | None:
    """How many slots the memory of the device shows, fewer than wanted; None if not known."""
    taken = taken_mib(readings, wanted.device)
    if taken is None or wanted.beside_mib is None:
        return None
    slots = round((taken - buffers_mib - wanted.beside_mib) / wanted.slot_mib)
    slots = min(slots, wanted.count - 1)
    return slots if slots >= _LEAST_SLOTS else 0
