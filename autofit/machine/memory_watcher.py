"""Memory over time: the counters of devices, of our processes and of the host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from autofit.machine.host_memory import HostMemory, ProcessTree
from autofit.trial.measurement import MemoryReading

MIN_INTERVAL_S = 0.5  # 2 Hz: more would disturb what is measured
DUTY = 0.1  # the share of time that may go into reading: a slow source is read less often
MAX_READINGS = 2000
HOST = "host"
RETURN_TOLERANCE_MIB = 64.0


class Counter(NamedTuple):
    """What a device's memory counter says, in MiB; None where there is none."""

    used_mib: float | None
    free_mib: float | None


UNKNOWN = Counter(None, None)


class MemorySource(Protocol):
    """Something that reads memory counters by the runtime's names of devices."""

    def read(self) -> Mapping[str, Counter]:
        """The counters now. A device that has none is missing or None, never 0.

        A source may also tell of the `host`, where that is not this machine.
        """


class NoSource:
    """Where no device has a counter."""

    def read(self) -> Mapping[str, Counter]:
        """No counters."""
        return {}


@dataclass(frozen=True, slots=True)
class Peak:
    """The most memory used while watching, and what was free then, in MiB by device name.

    `host` is our processes' own memory and what the host had left beside it.
    """

    used_mib: Mapping[str, float | None] = field(default_factory=dict)
    free_mib: Mapping[str, float | None] = field(default_factory=dict)


class MemoryWatcher:
    """Reads memory in a thread, between `start` and `stop`, twice a second at most.

    `read` takes a reading at once, whatever the thread does: for moments that count.

    A source that fails leaves None in that reading and is asked again. `pid` may be set once
    the server is known; readings before it tell nothing of the process. `tell` hears of every
    reading, mostly from the thread, and must not raise.
    """

    def __init__(
        self,
        source: MemorySource,
        *,
        pid: int | None = None,
        interval_s: float = MIN_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[MemoryReading], None] = lambda _: None,
    ) -> None:
        self._tell = tell
        self.failure: str | None = None  # the last thing that went wrong with the source
        self._source = source
        self._tree = ProcessTree(pid) if pid is not None else None
        self._host = HostMemory()
        self._interval_s = interval_s
        self._clock = clock
        self._began_s = clock()
        self._readings: list[MemoryReading] = []
        self._peak_used: dict[str, float] = {}
        self._free_then: dict[str, float | None] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, pid: int) -> None:
        """From now on count the memory of this process and its offspring."""
        self._tree = ProcessTree(pid)

    def start(self) -> Self:
        """Take the first reading, and go on in a thread."""
        self._began_s = self._clock()
        self.read()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> tuple[MemoryReading, ...]:
        """Take a last reading unless that was done, and end the thread; all readings."""
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()
            self._thread = None
            self.read()
        return self.readings()

    def readings(self) -> tuple[MemoryReading, ...]:
        """The readings so far, thinned evenly when there are very many."""
        with self._lock:
            return tuple(self._readings)

    def peak(self) -> Peak:
        """The peaks so far, taken from all readings, thinned or not."""
        with self._lock:
            names = {
                *self._peak_used,
                *(name for reading in self._readings[:1] for name in reading.device_used_mib),
                HOST,
            }
            return Peak(
                {name: self._peak_used.get(name) for name in sorted(names)},
                {name: self._free_then.get(name) for name in sorted(names)},
            )

    def read(self) -> MemoryReading:
        """Take a reading now."""
        try:
            counters = self._source.read()
        except Exception as error:  # noqa: BLE001 - a counter must never end a measurement
            self.failure = f"{type(error).__name__}: {error}"
            counters = {}
        process = self._tree.read() if self._tree is not None else None
        host = counters.get(HOST)
        reading = MemoryReading(
            at_s=round(self._clock() - self._began_s, 3),
            device_used_mib={name: counter.used_mib for name, counter in counters.items()},
            device_free_mib={name: counter.free_mib for name, counter in counters.items()},
            process_mib=process.total_mib if process else None,
            host_available_mib=host.free_mib if host else self._host.available_mib(),
            major_faults=process.major_faults if process else None,
            process_file_mib=process.file_mib if process else None,
            process_swapped_mib=process.swapped_mib if process else None,
        )
        with self._lock:
            self._keep(reading)
        self._tell(reading)
        return reading

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        pause_s = self._interval_s
        while not self._is_over.wait(pause_s):
            began_s = time.monotonic()
            self.read()
            pause_s = max(self._interval_s, (time.monotonic() - began_s) * (1 / DUTY - 1))

    def _keep(self, reading: MemoryReading) -> None:
        self._readings.append(reading)
        if len(self._readings) > MAX_READINGS:
            del self._readings[1::2]
        used = {**reading.device_used_mib, HOST: reading.process_mib}
        free = {**reading.device_free_mib, HOST: reading.host_available_mib}
        for name, used_mib in used.items():
            if used_mib is not None and used_mib >= self._peak_used.get(name, used_mib):
                self._peak_used[name] = used_mib
                self._free_then[name] = free.get(name)


@dataclass(frozen=True, slots=True)
class Release:
    """What came of waiting for memory: `reference` is what to expect from now on.

    `notice` is empty when all of it came back.
    """

    is_back: bool
    waited_s: float
    reference: Mapping[str, float | None]
    notice: str = ""


def used_mib(source: MemorySource) -> dict[str, float | None]:
    """What is used on each device now, as a reference for `wait_for_release`."""
    return {name: counter.used_mib for name, counter in source.read().items()}


def wait_for_release(
    source: MemorySource,
    reference: Mapping[str, float | None],
    *,
    limit_s: float = 30.0,
    tolerance_mib: float = RETURN_TOLERANCE_MIB,
    poll_s: float = 0.25,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Release:
    """Wait until devices use no more than they did at the reference.

    A driver may take seconds to give back what a dead process held. What is not back within
    the limit belongs to somebody else, or is lost: it becomes part of the new reference.
    Devices without a counter are not waited for.
    """
    began_s = clock()
    while True:
        now = used_mib(source)
        held = {
            name: used - before
            for name, before in reference.items()
            if before is not None
            and (used := now.get(name)) is not None
            and used > before + tolerance_mib
        }
        waited_s = clock() - began_s
        if not held:
            return Release(True, waited_s, reference)
        if waited_s >= limit_s:
            listed = ", ".join(f"{mib:.0f} MiB on {name}" for name, mib in held.items())
            return Release(
                is_back=False,
                waited_s=waited_s,
                reference={**reference, **{name: now[name] for name in held}},
                notice=f"{listed} did not come back within {limit_s:.0f} s after the stop; "
                "taken as the new starting point",
            )
        sleep(min(poll_s, limit_s))
