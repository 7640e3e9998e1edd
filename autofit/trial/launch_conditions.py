"""Under what conditions a launch was measured: what others did, how fast the clocks ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """One GPU while requests were processed; None where it does not tell.

    `clock_mhz` is the middle of all samples, `low_clock_mhz` the least, `temperature_c` and
    `power_w` the most. `throttled_by` has the share of samples by reason.
    """

    name: str
    pci_id: str
    clock_mhz: float | None = None
    low_clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttled_by: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The machine while requests were processed; None where it does not tell.

    `others_cores` are the cores that other processes than ours kept busy, of `cores`;
    `steal_share` is the part of all CPU time that a hypervisor gave to others, `cpu_mhz` the
    middle of all samples, `cpu_temperature_c` the most, `cpu_throttles` how often the
    processor slowed itself down for heat. `pressure` has the share of time in which some task
    waited for `cpu`, `memory` or `io` (ours count, too).
    """

    seconds: float
    cores: int
    others_cores: float | None = None
    steal_share: float | None = None
    load_1m: float | None = None
    cpu_mhz: float | None = None
    low_cpu_mhz: float | None = None
    cpu_temperature_c: float | None = None
    cpu_throttles: int | None = None
    pressure: Mapping[str, float] = field(default_factory=dict)
    gpus: tuple[GpuConditions, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Conditions:
        """The inverse of `dataclasses.asdict`.

        Raises:
            TypeError: a field is missing or not known.
        """
        return cls(**{**data, "gpus": tuple(GpuConditions(**g) for g in data.get("gpus", ()))})
