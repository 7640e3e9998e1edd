"""The memory of a simulated machine: its owners, and failures when none is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fakes.machine import Machine

HowFull = Literal["device", "pinned", "host", "killed"]


class FullError(Exception):
    """An allocation was refused; `how` says by whom."""

    def __init__(self, how: HowFull, mib: float) -> None:
        super().__init__(f"{how}: {mib:.2f} MiB")
        self.how: HowFull = how
        self.mib = mib


@dataclass(slots=True)
class Ledger:
    """Memory of one process next to that of other programs (`floors_mib`), device by device."""

    machine: Machine
    floors_mib: tuple[float, ...] = ()
    host_floor_mib: float = 0.0
    used_mib: list[float] = field(default_factory=list)
    spilled_mib: list[float] = field(default_factory=list)
    host_used_mib: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.machine.devices)
        self.used_mib = self.used_mib or [0.0] * count
        self.spilled_mib = self.spilled_mib or [0.0] * count
        self.floors_mib = self.floors_mib or tuple(d.other_mib for d in self.machine.devices)
        self.host_floor_mib = self.host_floor_mib or self.machine.host.other_mib

    def capacity_mib(self, index: int) -> float:
        """Return the memory of a device that the process may use."""
        device = self.machine.devices[index]
        return device.total_mib - device.reserve_mib - self.floors_mib[index]

    def free_mib(self, index: int) -> float:
        """Return the free memory of a device; zero if it spills."""
        return max(0.0, self.capacity_mib(index) - self.used_mib[index])

    def host_free_mib(self) -> float:
        """Return the free memory of the host."""
        return self.machine.host.ram_mib - self.host_floor_mib - self.host_used_mib

    def take(self, index: int, mib: float) -> None:
        """Give the process device memory.

        Raises:
            FullError: there is not enough.
        """
        left = self.capacity_mib(index) - self.used_mib[index]
        if mib <= left:
            if self.machine.is_unified:
                self.take_host(mib)
            self.used_mib[index] += mib
            return
        if self.machine.policy != "spill":
            raise FullError("device", mib)
        fitting = max(0.0, left)
        self.take_host(mib - fitting)
        self.used_mib[index] += fitting
        self.spilled_mib[index] += mib - fitting

    def take_host(self, mib: float) -> None:
        """Give the process host memory.

        Raises:
            FullError: there is not enough.
        """
        if mib > self.host_free_mib():
            raise FullError("host" if self.machine.host.refuses else "killed", mib)
        self.host_used_mib += mib

    def give(self, index: int, mib: float) -> None:
        """Take device memory back from the process, what spilled first."""
        spilled = min(mib, self.spilled_mib[index])
        self.spilled_mib[index] -= spilled
        self.used_mib[index] -= mib - spilled
        self.host_used_mib -= mib if self.machine.is_unified else spilled
