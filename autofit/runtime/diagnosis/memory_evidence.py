"""Failures that only memory counters show: spilled memory and refused prefetch slots.

If a device is full, some drivers allocate host memory in its place, without an error: NVIDIA's on
Windows, amdgpu and Intel's on Linux. The server then runs many times slower. A spill shows in the
counters: a full device uses less than the runtime reports, or the host memory that the driver
provides (`NAME.gtt`) grows. A full device alone is no sign, and neither is a slow candidate. If
device and host share their memory, or the device is a remote process, the counters show no spill.

Prefetch slots are allocated with the first large batch. If they do not fit, some builds exit.
Others keep the slots they got, at least two, or prefetch nothing. The log then contains only the
backend's line about a failed allocation of the size of a slot. Only the memory of the device shows
how many slots there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autofit.machine.rpc_servers import split_endpoint
from autofit.trial.device import Device
from autofit.trial.measurement import MemoryReading
from autofit.trial.outcome import OutOfMemory, Spilled

# A driver that spills keeps some of the device's memory free: up to 500 MiB on a card of 16 GiB
# with 9 GB spilled.
_FULL_MIB = 640.0
_FULL_SHARE = 0.04
# The least missing memory of a full device that is a spill without another sign: pools differ
# by less between launches.
_CLEAR_MIB = 128.0
# With another sign less is enough. A device that is not full needs both signs.
_SUPPORTED_MIB = 48.0
# Chance hardly ever fills a device to the last byte.
_BRIM_FREE_MIB = 16.0
_BRIM_SIGN_MIB = 32.0
# Other programs may allocate or free this much during a launch that is used as a reference.
_OTHERS_MIB = 64.0
# Candidates that differ by one host layer differ by less; a spill costs several times this.
_FAR_SLOWER = 1.5
_LENT_SUFFIX = ".gtt"
# A log prints a size with two decimals, and buffers are padded.
_SAME_MIB = 1.0
# A runtime frees the slots if it got fewer than this.
_LEAST_SLOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedUsage:
    """The memory that a launch should use on one device.

    `buffers_mib` are the buffers that the runtime reports. `unreported_mib` is the rest of what
    a launch uses (driver context, pools), if earlier launches showed it. Memory that
    `is_shared` belongs to the host or to another process.
    """

    device: str
    buffers_mib: float
    unreported_mib: float | None = None
    is_shared: bool = False

    @property
    def needed_mib(self) -> float:
        """The least memory that the device must use."""
        return self.buffers_mib + (self.unreported_mib or 0.0)


def find_shared_devices(devices: Iterable[Device]) -> frozenset[str]:
    """Return the devices whose used memory is the host's or that of a remote process."""
    return frozenset(
        device.name
        for device in devices
        if device.is_unified or split_endpoint(device.description) is not None
    )


def find_spill(
    readings: Sequence[MemoryReading],
    expected: Sequence[ExpectedUsage],
    *,
    pinned_mib: float = 0.0,
    slowdown: float | None = None,
) -> Spilled | None:
    """Return the largest spill of a launch, or None if the counters show none.

    The outcome has the least memory that went to the host.

    Args:
        readings: from before the launch to after its stop.
        expected: the memory that each device should use.
        pinned_mib: host memory that the runtime itself pins for devices.
        slowdown: time of the launch divided by that of similar candidates, if known.
    """
    spills = [
        spill
        for usage in expected
        if not usage.is_shared
        for spill in _find_spills(readings, usage, pinned_mib, slowdown)
    ]
    return max(spills, key=lambda spill: spill.spilled_mib or 0.0, default=None)


def launch_usage_mib(readings: Sequence[MemoryReading], device: str) -> float | None:
    """Return the memory that a launch added to a device's used memory; None without a counter.

    The lower of the values before and after counts as that of other programs. Otherwise a
    program that ended during the launch would hide as much of the launch's memory.
    """
    used = [_used_mib(reading, device) for reading in readings]
    if not used or used[0] is None:
        return None
    known = [mib for mib in used if mib is not None]
    return max(known) - min(known[0], known[-1])


def is_steady(readings: Sequence[MemoryReading], device: str) -> bool:
    """Return whether other programs used as much of a device after a launch as before."""
    used = [_used_mib(reading, device) for reading in readings]
    ends = [mib for mib in (*used[:1], *used[-1:]) if mib is not None]
    return len(ends) == 2 and abs(ends[0] - ends[1]) <= _OTHERS_MIB  # noqa: PLR2004 - first, last


def free_at_peak_mib(readings: Sequence[MemoryReading], device: str) -> float | None:
    """Return the free memory at the peak of the used memory; None without a counter."""
    known = [
        (used, free)
        for reading in readings
        if (used := _used_mib(reading, device)) is not None
        and (free := reading.device_free_mib.get(device)) is not None
    ]
    return min(free for used, free in known if used == max(known)[0]) if known else None


def _is_full(readings: Sequence[MemoryReading], device: str) -> bool:
    """Return whether a device had no more left than a driver that spills leaves."""
    free = free_at_peak_mib(readings, device)
    if free is None:
        return False
    used = max(mib for reading in readings if (mib := _used_mib(reading, device)) is not None)
    return free <= max(_FULL_MIB, _FULL_SHARE * (used + free))


def _find_spills(
    readings: Sequence[MemoryReading],
    expected: ExpectedUsage,
    pinned_mib: float,
    slowdown: float | None,
) -> Iterator[Spilled]:
    device = expected.device
    usage = launch_usage_mib(readings, device)
    missing = 0.0 if usage is None else expected.needed_mib - usage
    lent = max(0.0, (launch_usage_mib(readings, f"{device}{_LENT_SUFFIX}") or 0.0) - pinned_mib)
    is_slow = slowdown is not None and slowdown >= _FAR_SLOWER
    least = _least_missing_mib(readings, device, is_supported=lent >= _SUPPORTED_MIB or is_slow)
    if usage is not None and missing >= least:
        free = free_at_peak_mib(readings, device)
        signs = [f"{device} should use {expected.needed_mib:.0f} MiB and used {usage:.0f} MiB"]
        if free is not None:
            signs.append(f"{free:.0f} MiB are free")
        if lent:
            signs.append(f"its use of host memory grew by {lent:.0f} MiB")
        if is_slow:
            signs.append(f"it is {slowdown:.1f} times slower than similar candidates")
        yield Spilled("prompt", "; ".join(signs), device, round(max(missing, lent), 1))
    elif lent >= _CLEAR_MIB and _is_full(readings, device):
        text = f"{device} is full and uses {lent:.0f} MiB of host memory"
        yield Spilled("prompt", text, device, round(lent, 1))


def _least_missing_mib(
    readings: Sequence[MemoryReading], device: str, *, is_supported: bool
) -> float:
    """Return the least missing memory that counts as a spill."""
    if not _is_full(readings, device):
        return 2 * _CLEAR_MIB if is_supported else float("inf")
    free = free_at_peak_mib(readings, device)
    if free is not None and free <= _BRIM_FREE_MIB:
        return _BRIM_SIGN_MIB
    return _SUPPORTED_MIB if is_supported else _CLEAR_MIB


def _used_mib(reading: MemoryReading, device: str) -> float | None:
    return reading.device_used_mib.get(device)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedSlots:
    """The prefetch slots that a launch should allocate on a device.

    `unreported_mib` is the memory that a launch without slots uses in addition to the runtime's
    buffers, or None if it is not known.
    """

    device: str
    count: int
    slot_mib: float
    unreported_mib: float | None = None


def find_refused_slots(
    readings: Sequence[MemoryReading],
    expected: ExpectedSlots,
    *,
    buffers_mib: float,
    refused_mib: Sequence[float],
) -> OutOfMemory | None:
    """Return the outcome of a launch whose slots did not all fit; None if they did.

    Args:
        readings: from before the launch to after its stop.
        expected: the slots.
        buffers_mib: the runtime's own buffers on the device.
        refused_mib: the allocations that failed while the server continued.
    """
    device, slot_mib = expected.device, expected.slot_mib
    if not any(abs(mib - slot_mib) <= _SAME_MIB for mib in refused_mib):
        return None
    free_mib = free_at_peak_mib(readings, device)
    if free_mib is not None and free_mib >= _LEAST_SLOTS * slot_mib:
        return None  # a second attempt had enough memory
    count = _count_slots(readings, expected, buffers_mib)
    allocated = "fewer" if count is None else str(count)
    text = (
        f"{device} has no memory for {expected.count} prefetch slots of {slot_mib:.0f} MiB: "
        f"{allocated} allocated, without an error message"
    )
    return OutOfMemory("prompt", text, "device", "pool", device, slot_mib)


def _count_slots(
    readings: Sequence[MemoryReading], expected: ExpectedSlots, buffers_mib: float
) -> int | None:
    """Return how many slots the used memory shows, fewer than expected; None if not known."""
    usage = launch_usage_mib(readings, expected.device)
    if usage is None or expected.unreported_mib is None:
        return None
    slots = round((usage - buffers_mib - expected.unreported_mib) / expected.slot_mib)
    slots = min(slots, expected.count - 1)
    return slots if slots >= _LEAST_SLOTS else 0
