"""Memory counters of devices, and waiting until a stopped process has released its memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

RELEASE_TOLERANCE_MIB = 64.0
_POLL_S = 0.25


class MemoryCounter(NamedTuple):
    """The memory of a device at one moment, in MiB; a field is None if unknown."""

    used_mib: float | None
    free_mib: float | None


UNKNOWN = MemoryCounter(None, None)


class MemorySource(Protocol):
    """A reader of memory counters. Devices have the runtime's names."""

    def read(self) -> Mapping[str, MemoryCounter]:
        """Return the counters now. A device without one is missing or None, never 0.

        A source can also have a counter of the `host`, if that is not this machine.
        """


class NoMemorySource:
    """A source without any counter."""

    def read(self) -> Mapping[str, MemoryCounter]:
        """Return no counters."""
        return {}


@dataclass(frozen=True, slots=True)
class MemoryRelease:
    """The result of waiting for memory; `reference_mib` is the use to expect from now on.

    `notice` is empty if all memory was released.
    """

    is_complete: bool
    waited_s: float
    reference_mib: Mapping[str, float | None]
    notice: str = ""


def read_used_mib(source: MemorySource) -> dict[str, float | None]:
    """Return the memory used on each device now, as a reference for `wait_for_release`."""
    return {name: counter.used_mib for name, counter in source.read().items()}


def wait_for_release(
    source: MemorySource,
    reference_mib: Mapping[str, float | None],
    *,
    limit_s: float = 30.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> MemoryRelease:
    """Wait until devices use no more memory than at the reference.

    A driver can take seconds to release the memory of a dead process. Memory that is still used
    after `limit_s` belongs to another process, or is lost, and becomes part of the new reference.
    Devices without a counter are ignored.
    """
    began_s = clock()
    while True:
        now = read_used_mib(source)
        unreleased = {
            name: used - before
            for name, before in reference_mib.items()
            if before is not None
            and (used := now.get(name)) is not None
            and used > before + RELEASE_TOLERANCE_MIB
        }
        waited_s = clock() - began_s
        if not unreleased:
            return MemoryRelease(True, waited_s, reference_mib)
        if waited_s >= limit_s:
            listed = ", ".join(f"{mib:.0f} MiB on {name}" for name, mib in unreleased.items())
            return MemoryRelease(
                is_complete=False,
                waited_s=waited_s,
                reference_mib={**reference_mib, **{name: now[name] for name in unreleased}},
                notice=f"{limit_s:.0f} s after the server stopped, {listed} were still in use; "
                "autofit no longer waits for them",
            )
        sleep(min(_POLL_S, limit_s))
