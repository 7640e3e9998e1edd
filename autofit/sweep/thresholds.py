"""From which change on an entry is called worse or better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit.trial.metric import METRIC_KEYS, METRICS

_PERCENT_KEYS = {**{str(metric): METRIC_KEYS[metric] for metric in METRICS}, "load_s": "load_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The smallest changes that count, and how sure a claim must be.

    The first five are shares of the time (0.03: a change below 3% is none, however sure it
    is); without one for `load_s`, which hangs on what the host has cached, it is not judged.
    `alpha` is the chance that any figure of speed of an entry is called slower or faster
    where none has changed. `night_sd` is what nights are taken to differ by, as a share,
    until the kept ones tell. `memory_mib` is for devices, `host_memory_mib` for the runtime's
    own memory in RAM, which allocators and mapped files move by more.
    """

    pp_per_s: float = 0.03
    tg_per_s: float = 0.03
    ttft_s: float = 0.03
    request_s: float = 0.03
    load_s: float | None = None
    memory_mib: float = 128.0
    host_memory_mib: float = 512.0
    boundary_layers: int = 1
    alpha: float = 0.05
    night_sd: float = 0.0075

    @classmethod
    def of(cls, wanted: Mapping[str, float]) -> Thresholds:
        """The thresholds of a suite: percent by metric, MiB for `memory_mib`."""
        shares: dict[str, Any] = {
            key: wanted[metric] / 100 for metric, key in _PERCENT_KEYS.items() if metric in wanted
        }
        if "memory_mib" in wanted:
            shares["memory_mib"] = wanted["memory_mib"]
        return cls(**shares)

    @property
    def speeds(self) -> dict[str, float]:
        """The metrics of speed that are judged, with the smallest change that counts."""
        return {
            key: share
            for key in _PERCENT_KEYS.values()
            if (share := getattr(self, key)) is not None
        }
