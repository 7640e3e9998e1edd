"""From which change on an entry is called worse or better."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The smallest changes that count, and how sure a claim must be.

    The first four are shares of the time (0.03: a change below 3% is none, however sure it
    is). `alpha` is the chance that an entry without any change is called slower or faster;
    `night_sd` what nights are taken to differ by, as a share, until the kept ones tell.
    `memory_mib` is for devices, `host_memory_mib` for the runtime's own memory in RAM, which
    allocators and mapped files move by more.
    """

    pp_per_s: float = 0.03
    tg_per_s: float = 0.03
    ttft_s: float = 0.03
    request_s: float = 0.03
    memory_mib: float = 64.0
    host_memory_mib: float = 512.0
    boundary_layers: int = 1
    alpha: float = 0.05
    night_sd: float = 0.005

    def speed(self, key: str) -> float:
        """The smallest change of a metric of speed that counts."""
        share: float = getattr(self, key)
        return share
