"""Recorded memory counters, and a clock for tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from autofit.machine.memory_counter import MemoryCounter


class Recorded:
    """A source of recorded counters, the last of them forever; an exception is raised."""

    def __init__(self, *counters: Mapping[str, MemoryCounter] | Exception) -> None:
        self.counters: Iterator = itertools.chain(counters, itertools.repeat(counters[-1]))

    def read(self) -> Mapping[str, MemoryCounter]:
        """Return the next recorded counters."""
        found = next(self.counters)
        if isinstance(found, Exception):
            raise found
        return found


class Clock:
    """A clock that moves only by `sleep`."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Move the clock."""
        self.now_s += seconds


def used(**mib: float) -> dict[str, MemoryCounter]:
    """Return counters of devices with 1000 MiB."""
    return {name: MemoryCounter(value, 1000.0 - value) for name, value in mib.items()}
