"""Memory over time: readings and peaks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import ClassVar

from machine.memory_sample import Clock, Recorded, used

from autofit.machine.memory_counter import MemoryCounter, NoMemorySource
from autofit.machine.memory_watcher import MemoryPeak, MemoryWatcher


def test_readings_have_times_and_counters():
    """Each reading has its time since the start and the counters of every device."""
    clock = Clock()
    watcher = MemoryWatcher(Recorded(used(CUDA0=1), used(CUDA0=2)), clock=clock)

    watcher.read()
    clock.sleep(0.5)
    watcher.read()

    readings = watcher.stop()
    assert [reading.at_s for reading in readings] == [0.0, 0.5]
    assert [reading.device_used_mib for reading in readings] == [{"CUDA0": 1}, {"CUDA0": 2}]
    assert readings[1].device_free_mib == {"CUDA0": 998}


def test_a_peak_has_the_free_memory_of_its_moment():
    """A peak has the free memory of its own moment, not of the last reading."""
    watcher = MemoryWatcher(
        Recorded(
            used(A=1, B=7), used(A=5, B=2), {"A": MemoryCounter(3, 1), "B": MemoryCounter(1, 1)}
        )
    )
    for _ in range(3):
        watcher.read()

    peak = watcher.peak()

    assert peak.used_mib == {"A": 5, "B": 7, "host": None}
    assert peak.free_mib == {"A": 995, "B": 993, "host": None}


def test_a_missing_counter_is_none():
    """A device without a counter has an unknown peak and not 0."""
    watcher = MemoryWatcher(Recorded({"RPC0": MemoryCounter(None, None)}))
    watcher.read()

    assert watcher.peak() == MemoryPeak({"RPC0": None, "host": None}, {"RPC0": None, "host": None})


def test_a_failing_source_is_read_again():
    """A failure affects one reading and is recorded; the source is read again."""
    watcher = MemoryWatcher(Recorded(used(A=1), OSError("gone"), used(A=2)))
    for _ in range(3):
        watcher.read()

    assert [reading.device_used_mib for reading in watcher.readings()] == [{"A": 1}, {}, {"A": 2}]
    assert watcher.failure == "OSError: gone"
    assert watcher.peak().used_mib["A"] == 2


def test_the_thread_reads_from_start_to_stop():
    """The thread reads between start and stop, which take a reading too."""
    watcher = MemoryWatcher(NoMemorySource(), pid=os.getpid(), interval_s=0.01)
    with watcher:
        deadline = time.monotonic() + 20
        while len(watcher.readings()) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    readings = watcher.stop()
    assert all((reading.process_mib or 0) > 1 for reading in readings)
    assert all((reading.host_available_mib or 0) > 1 for reading in readings)
    assert watcher.peak().used_mib["host"] == max(reading.process_mib for reading in readings)
    assert len(watcher.readings()) == len(readings)


def test_a_slow_source_is_read_less_often():
    """The thread reads for at most a tenth of the time."""

    class Slow:
        began_s: ClassVar[list[float]] = []

        def read(self) -> Mapping[str, MemoryCounter]:
            self.began_s.append(time.monotonic())
            time.sleep(0.05)
            return {}

    with MemoryWatcher(Slow(), interval_s=0.01) as watcher:
        deadline = time.monotonic() + 20
        while len(watcher.readings()) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    by_thread = Slow.began_s[1:4]

    assert by_thread[2] - by_thread[1] >= 0.5
    assert len(Slow.began_s) == len(watcher.readings())


def test_a_process_can_be_set_later():
    """Readings before `watch` have no memory of a process."""
    watcher = MemoryWatcher(NoMemorySource())
    before = watcher.read()
    watcher.watch(os.getpid())

    assert before.process_mib is None
    assert watcher.read().process_mib > 1


def test_many_readings_keep_their_peak():
    """Many readings take bounded memory, and the peak is exact."""
    counters = [used(A=i % 1000) for i in range(2999)]
    watcher = MemoryWatcher(Recorded(*counters[:1001], used(A=5000), *counters[1001:]))
    for _ in range(3000):
        watcher.read()

    readings = watcher.readings()
    assert len(readings) <= 2000
    assert readings[0].device_used_mib == {"A": 0}
    assert watcher.peak().used_mib["A"] == 5000


def test_every_reading_is_reported():
    """`on_reading` gets the readings of the thread and the others."""
    heard = []
    with MemoryWatcher(Recorded(used(A=1), used(A=2)), on_reading=heard.append) as watcher:
        watcher.read()

    assert tuple(heard) == watcher.readings()
    assert len(heard) == 3
