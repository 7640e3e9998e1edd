"""The memory of devices, of our processes and of the host, watched over time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from autofit.machine.cgroup import Cgroup
from autofit.machine.memory_counter import MemorySource
from autofit.machine.process_memory import ProcessTree
from autofit.trial.device import HOST_NAME
from autofit.trial.measurement import MemoryReading

READING_SHARE = 0.1  # of the time, at most: a slow source is read less often
_MIN_INTERVAL_S = 0.5  # more than 2 Hz would disturb the measurement
_MAX_READINGS = 2000


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The highest memory use while watching, and the free memory then, in MiB by device name.

    `host` is the memory of our processes, and what the host had left.
    """

    used_mib: Mapping[str, float | None] = field(default_factory=dict)
    free_mib: Mapping[str, float | None] = field(default_factory=dict)


class MemoryWatcher:
    """A thread that reads memory between `start` and `stop`, at most twice a second.

    If a source fails, its values in that reading are None, and it is read again next time. The
    memory of processes is read only after a call of `watch`. `on_reading` is called with every
    reading, usually by the thread, and must not raise.
    """

    def __init__(
        self,
        source: MemorySource,
        *,
        pid: int | None = None,
        interval_s: float = _MIN_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
        on_reading: Callable[[MemoryReading], None] = lambda _: None,
    ) -> None:
        self.failure: str | None = None  # the last failure of the source
        self._source = source
        self._tree = ProcessTree(pid) if pid is not None else None
        self._cgroup = Cgroup.find()
        self._interval_s = interval_s
        self._clock = clock
        self._on_reading = on_reading
        self._began_s = clock()
        self._readings: list[MemoryReading] = []
        self._peak_used: dict[str, float] = {}
        self._free_then: dict[str, float | None] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, pid: int) -> None:
        """Count the memory of a process and its descendants from now on."""
        self._tree = ProcessTree(pid)

    def start(self) -> Self:
        """Take the first reading, and start the thread."""
        self._began_s = self._clock()
        self.read()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> tuple[MemoryReading, ...]:
        """End the thread with a last reading, and return all readings; may be called again."""
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()
            self._thread = None
            self.read()
        return self.readings()

    def readings(self) -> tuple[MemoryReading, ...]:
        """Return the readings so far; if there are very many, only an even selection."""
        with self._lock:
            return tuple(self._readings)

    def peak(self) -> MemoryPeak:
        """Return the peaks of all readings so far."""
        with self._lock:
            names = {
                *self._peak_used,
                *(name for reading in self._readings[:1] for name in reading.device_used_mib),
                HOST_NAME,
            }
            return MemoryPeak(
                {name: self._peak_used.get(name) for name in sorted(names)},
                {name: self._free_then.get(name) for name in sorted(names)},
            )

    def read(self) -> MemoryReading:
        """Take a reading now, independently of the thread."""
        try:
            counters = self._source.read()
        except Exception as error:  # noqa: BLE001 - a counter must never end a measurement
            self.failure = f"{type(error).__name__}: {error}"
            counters = {}
        process = self._tree.read() if self._tree is not None else None
        host = counters.get(HOST_NAME)
        reading = MemoryReading(
            at_s=round(self._clock() - self._began_s, 3),
            device_used_mib={name: counter.used_mib for name, counter in counters.items()},
            device_free_mib={name: counter.free_mib for name, counter in counters.items()},
            process_mib=process.total_mib if process else None,
            host_available_mib=host.free_mib if host else self._cgroup.available_mib(),
            major_faults=process.major_faults if process else None,
            process_file_mib=process.file_mib if process else None,
            process_swapped_mib=process.swapped_mib if process else None,
        )
        with self._lock:
            self._keep(reading)
        self._on_reading(reading)
        return reading

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        pause_s = self._interval_s
        while not self._is_over.wait(pause_s):
            began_s = time.monotonic()
            self.read()
            reading_s = time.monotonic() - began_s
            pause_s = max(self._interval_s, reading_s * (1 / READING_SHARE - 1))

    def _keep(self, reading: MemoryReading) -> None:
        self._readings.append(reading)
        if len(self._readings) > _MAX_READINGS:
            del self._readings[1::2]
        used = {**reading.device_used_mib, HOST_NAME: reading.process_mib}
        free = {**reading.device_free_mib, HOST_NAME: reading.host_available_mib}
        for name, used_mib in used.items():
            if used_mib is not None and used_mib >= self._peak_used.get(name, used_mib):
                self._peak_used[name] = used_mib
                self._free_then[name] = free.get(name)
