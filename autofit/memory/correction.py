"""What launches taught about memory: how far a device's compute buffer and the rest are off.

Remembered for one model, build and device, where the arithmetic or the runtime's estimator is
off in the same way at every candidate. Keeping it on disk is the caller's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from autofit.model.sizes.memory_estimate import MemoryEstimate
from autofit.trial.measurement import ReportedMemory

_LARGEST_FACTOR = 2.0  # beyond that a launch is not the same kind of thing as its estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMemory:
    """A launch beside its estimate.

    `reported` are the runtime's own rows by device name. `taken_mib` is what the device's free
    memory fell by from before the launch to its peak, by name, where there is a counter.
    """

    estimate: MemoryEstimate
    reported: Mapping[str, ReportedMemory] = field(default_factory=dict)
    taken_mib: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCorrection:
    """The compute buffer is multiplied, what no buffer shows is moved, for one device."""

    compute_factor: float = 1.0
    other_offset_mib: float = 0.0
    launches: int = 0


@dataclass(frozen=True, slots=True)
class Correction:
    """Corrections by device name; devices that no launch was seen on have none."""

    devices: Mapping[str, DeviceCorrection] = field(default_factory=dict)

    def applied(self, estimate: MemoryEstimate) -> MemoryEstimate:
        """The estimate as launches so far suggest it."""
        rows = []
        for row in estimate.devices:
            known = self.devices.get(row.name, DeviceCorrection())
            rows.append(
                replace(
                    row,
                    compute_mib=row.compute_mib * known.compute_factor,
                    other_mib=max(0.0, row.other_mib + known.other_offset_mib),
                )
            )
        return replace(estimate, devices=tuple(rows))

    def to_dict(self) -> dict[str, Any]:
        """The correction as JSON data."""
        return {
            name: {
                "compute_factor": device.compute_factor,
                "other_offset_mib": device.other_offset_mib,
                "launches": device.launches,
            }
            for name, device in self.devices.items()
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Correction:
        """The inverse of `to_dict`.

        Raises:
            TypeError: a field is missing or not known.
        """
        return cls({name: DeviceCorrection(**fields) for name, fields in data.items()})


def learn(observations: Sequence[ObservedMemory]) -> Correction:
    """What the launches have in common: medians, so that one odd launch changes little.

    Estimates must be those that no correction was applied to.
    """
    names = {row.name for seen in observations for row in seen.estimate.devices}
    return Correction({name: _learn_device(name, observations) for name in sorted(names)})


def _learn_device(name: str, observations: Sequence[ObservedMemory]) -> DeviceCorrection:
    factors, offsets, launches = [], [], 0
    for seen in observations:
        row = next((row for row in seen.estimate.devices if row.name == name), None)
        reported = seen.reported.get(name)
        if row is None or reported is None:
            continue
        launches += 1
        if row.compute_mib and reported.compute_mib:
            factor = reported.compute_mib / row.compute_mib
            if 1 / _LARGEST_FACTOR <= factor <= _LARGEST_FACTOR:
                factors.append(factor)
        taken = seen.taken_mib.get(name)
        if taken is not None:
            # The estimate counts a cache of experts among the rest, the runtime does not.
            buffers = reported.buffers_mib - reported.expert_cache_mib
            offsets.append(taken - buffers - row.other_mib)
    return DeviceCorrection(
        compute_factor=median(factors) if factors else 1.0,
        other_offset_mib=median(offsets) if offsets else 0.0,
        launches=launches,
    )
