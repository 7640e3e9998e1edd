"""Memory that was meant for a device and went to the host, without an error.

Some drivers answer an allocation that does not fit from host memory: NVIDIA's on Windows,
amdgpu and Intel's on Linux. The server then runs, many times slower, and says nothing. What
tells it are the counters: a device that has nothing left holds less than the runtime says it
keeps there, or the host memory that the driver lends (`NAME.gtt`) grows.

A full device alone is no sign, and neither is a slow candidate. Where device and host share
their memory, and where a device is a process on the other end of a network, used memory says
nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autofit.machine.rpc import split_endpoint
from autofit.trial.device import Device
from autofit.trial.measurement import MemoryReading
from autofit.trial.outcome import OutOfMemory, Spilled

# A driver that spills keeps some memory of the device to itself: up to 500 MiB were seen free
# on a card of 16 GiB that had 9 GB spilled.
_FULL_MIB = 640.0
_FULL_SHARE = 0.04
# What must be missing on a device before it counts: pools differ by less between launches.
_CLEAR_MIB = 128.0
# With another sign beside it, less is enough; on a device that is not full, nothing less
# than both.
_SUPPORTED_MIB = 48.0
# A device hardly ever comes out filled to the last byte by chance.
_BRIM_FREE_MIB = 16.0
_BRIM_SIGN_MIB = 32.0
# What other programs may take or give back meanwhile without spoiling what a launch shows.
_OTHERS_MIB = 64.0
LENT = ".gtt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedUsage:
    """What a launch is to hold on one device.

    `buffers_mib` are the runtime's own figures. `unreported_mib` is what a launch takes beside
    them (driver context, pools), as earlier launches showed; None where none has. Memory of
    a device that `is_shared` is the host's, or another process's.
    """

    device: str
    buffers_mib: float
    unreported_mib: float | None = None
    is_shared: bool = False

    @property
    def needed_mib(self) -> float:
        """At least what the device must hold."""
        return self.buffers_mib + (self.unreported_mib or 0.0)


@dataclass(frozen=True, slots=True)
class Spill:
    """Memory of a device that lies in the host's; `mib` is the least it can be."""

    device: str
    mib: float
    evidence: str

    @property
    def outcome(self) -> Spilled:
        """What that makes of a launch; it shows once prompts are computed."""
        return Spilled("prompt", self.evidence, self.device, round(self.mib, 1))


def find_shared_devices(devices: Iterable[Device]) -> frozenset[str]:
    """The devices whose used memory is the host's, or that of a process elsewhere."""
    return frozenset(
        device.name
        for device in devices
        if device.is_unified or split_endpoint(device.description) is not None
    )


def find_spill(
    readings: Sequence[MemoryReading],
    holdings: Sequence[ExpectedUsage],
    *,
    pinned_mib: float = 0.0,
    slowdown: float | None = None,
) -> Spill | None:
    """The device that spilled most in a launch, None where none did or none can be told.

    Args:
        readings: from before the launch to after its stop.
        holdings: what each device was to hold.
        pinned_mib: host memory that the runtime itself keeps within the device's reach.
        slowdown: how many times slower the launch is than its neighbours, where known.
    """
    found = [
        spill
        for holding in holdings
        if not holding.is_shared
        for spill in _signs(readings, holding, pinned_mib, slowdown)
    ]
    return max(found, key=lambda spill: spill.mib, default=None)


def launch_usage_mib(readings: Sequence[MemoryReading], device: str) -> float | None:
    """How much a launch added to a device's used memory; None without a counter.

    The lower of what was used before and after counts as others': a program that ended
    meanwhile would hide as much of ours.
    """
    used = [_used(reading, device) for reading in readings]
    if not used or used[0] is None:
        return None
    known = [mib for mib in used if mib is not None]
    return max(known) - min(known[0], known[-1])


def is_steady(readings: Sequence[MemoryReading], device: str) -> bool:
    """Whether others held as much of a device after a launch as before, as far as is known."""
    used = [_used(reading, device) for reading in readings]
    ends = [mib for mib in (*used[:1], *used[-1:]) if mib is not None]
    return len(ends) == 2 and abs(ends[0] - ends[1]) <= _OTHERS_MIB  # noqa: PLR2004 - first, last


def free_at_peak_mib(readings: Sequence[MemoryReading], device: str) -> float | None:
    """What was free when most was used; None without a counter."""
    seen = [
        (used, free)
        for reading in readings
        if (used := _used(reading, device)) is not None
        and (free := reading.device_free_mib.get(device)) is not None
    ]
    return min(free for used, free in seen if used == max(seen)[0]) if seen else None


def is_full(readings: Sequence[MemoryReading], device: str) -> bool:
    """Whether a device had no more left than a driver that spills leaves."""
    free = free_at_peak_mib(readings, device)
    if free is None:
        return False
    used = max(mib for reading in readings if (mib := _used(reading, device)) is not None)
    return free <= max(_FULL_MIB, _FULL_SHARE * (used + free))


def _signs(
    readings: Sequence[MemoryReading],
    holding: ExpectedUsage,
    pinned_mib: float,
    slowdown: float | None,
) -> Iterator[Spill]:
    device = holding.device
    taken = launch_usage_mib(readings, device)
    missing = 0.0 if taken is None else holding.needed_mib - taken
    lent = max(0.0, (launch_usage_mib(readings, f"{device}{LENT}") or 0.0) - pinned_mib)
    is_supported = lent >= _SUPPORTED_MIB or _is_far_slower(slowdown)
    if taken is not None and missing >= _needed_sign(readings, holding, is_supported=is_supported):
        free = free_at_peak_mib(readings, device)
        signs = [f"{device} was to hold {holding.needed_mib:.0f} MiB and took {taken:.0f}"]
        if free is not None:
            signs.append(f"{free:.0f} MiB are left")
        if lent:
            signs.append(f"host memory lent to it grew by {lent:.0f} MiB")
        if slowdown is not None and _is_far_slower(slowdown):
            signs.append(f"it is {slowdown:.1f} times slower than its neighbours")
        yield Spill(device, max(missing, lent), "; ".join(signs))
    elif lent >= _CLEAR_MIB and is_full(readings, device):
        yield Spill(device, lent, f"{device} is full and holds {lent:.0f} MiB in host memory")


def _needed_sign(
    readings: Sequence[MemoryReading], holding: ExpectedUsage, *, is_supported: bool
) -> float:
    """How much must be missing on a device to be called a spill."""
    if not is_full(readings, holding.device):
        return 2 * _CLEAR_MIB if is_supported else float("inf")
    free = free_at_peak_mib(readings, holding.device)
    if free is not None and free <= _BRIM_FREE_MIB:
        return _BRIM_SIGN_MIB
    return _SUPPORTED_MIB if is_supported else _CLEAR_MIB


# Neighbours differ by what one host layer costs; a spill costs several times that.
_FAR_SLOWER = 1.5


def _is_far_slower(slowdown: float | None) -> bool:
    return slowdown is not None and slowdown >= _FAR_SLOWER


def _used(reading: MemoryReading, device: str) -> float | None:
    return reading.device_used_mib.get(device)


# A log tells a size with two decimals, and buffers are padded.
_SAME_MIB = 1.0
# Fewer slots than these are given back.
_LEAST_SLOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedSlots:
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
    wanted: ExpectedSlots,
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
    got = count_allocated_slots(readings, wanted, buffers_mib)
    told = "fewer were" if got is None else "none was" if not got else f"{got} were"
    text = (
        f"{wanted.device} had no room for {wanted.count} prefetch slots of "
        f"{wanted.slot_mib:.0f} MiB: {told} taken, without a word"
    )
    return OutOfMemory("prompt", text, "device", "pool", wanted.device, wanted.slot_mib)


def count_allocated_slots(
    readings: Sequence[MemoryReading], wanted: ExpectedSlots, buffers_mib: float
) -> int | None:
    """How many slots the memory of the device shows, fewer than wanted; None if not known."""
    taken = launch_usage_mib(readings, wanted.device)
    if taken is None or wanted.beside_mib is None:
        return None
    slots = round((taken - buffers_mib - wanted.beside_mib) / wanted.slot_mib)
    slots = min(slots, wanted.count - 1)
    return slots if slots >= _LEAST_SLOTS else 0
