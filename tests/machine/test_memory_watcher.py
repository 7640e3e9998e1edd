"""Memory over time: readings, peaks, and waiting for memory to come back."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest

from autofit.machine.memory_watcher import Counter, MemoryWatcher, NoSource, Peak, wait_for_release


class Recorded:
    """A source that plays back what it is given, the last for ever; an exception is raised."""

    def __init__(self, *counters: Mapping[str, Counter] | Exception) -> None:
        self.counters: Iterator = itertools.chain(counters, itertools.repeat(counters[-1]))

    def read(self) -> Mapping[str, Counter]:
        """The next recorded counters."""
        found = next(self.counters)
        if isinstance(found, Exception):
            raise found
        return found


class Clock:
    """A clock that stands still until it is told to sleep."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """The time now."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


def used(**mib: float) -> dict[str, Counter]:
    """Counters of devices of 1000 MiB."""
    return {name: Counter(value, 1000.0 - value) for name, value in mib.items()}


def test_readings_are_in_order_and_timed():
    """Each reading has its time since the start and every device's counters."""
    clock = Clock()
    watcher = MemoryWatcher(Recorded(used(CUDA0=1), used(CUDA0=2)), clock=clock)

    watcher.read()
    clock.sleep(0.5)
    watcher.read()

    readings = watcher.stop()
    assert [reading.at_s for reading in readings] == [0.0, 0.5]
    assert [reading.device_used_mib for reading in readings] == [{"CUDA0": 1}, {"CUDA0": 2}]
    assert readings[1].device_free_mib == {"CUDA0": 998}


def test_peak_keeps_what_was_free_then():
    """A device's peak comes with its own free memory at that moment, not the last."""
    watcher = MemoryWatcher(
        Recorded(used(A=1, B=7), used(A=5, B=2), {"A": Counter(3, 1), "B": Counter(1, 1)})
    )
    for _ in range(3):
        watcher.read()

    peak = watcher.peak()

    assert peak.used_mib == {"A": 5, "B": 7, "host": None}
    assert peak.free_mib == {"A": 995, "B": 993, "host": None}


def test_missing_counter_is_none():
    """A device without a counter has an unknown peak, never 0."""
    watcher = MemoryWatcher(Recorded({"RPC0": Counter(None, None)}))
    watcher.read()

    assert watcher.peak() == Peak({"RPC0": None, "host": None}, {"RPC0": None, "host": None})


def test_failing_source_is_survived():
    """A failure costs one reading and is remembered; the next is asked again."""
    watcher = MemoryWatcher(Recorded(used(A=1), OSError("gone"), used(A=2)))
    for _ in range(3):
        watcher.read()

    assert [reading.device_used_mib for reading in watcher.readings()] == [{"A": 1}, {}, {"A": 2}]
    assert watcher.failure == "OSError: gone"
    assert watcher.peak().used_mib["A"] == 2


def test_thread_reads_from_start_to_stop():
    """Between start and stop readings come by themselves, the first and last at once."""
    watcher = MemoryWatcher(NoSource(), pid=os.getpid(), interval_s=0.01)
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
    """Reading takes a tenth of the time at most; a reading that is asked for comes at once."""

    class Slow:
        began_s: ClassVar[list[float]] = []

        def read(self) -> Mapping[str, Counter]:
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


def test_process_may_be_known_later():
    """Readings before the server is known tell nothing of it."""
    watcher = MemoryWatcher(NoSource())
    before = watcher.read()
    watcher.watch(os.getpid())

    assert before.process_mib is None
    assert watcher.read().process_mib > 1


def test_very_many_readings_are_thinned_but_no_peak_is_lost():
    """A day of watching takes bounded memory and still knows its peak."""
    counters = [used(A=i % 1000) for i in range(2999)]
    watcher = MemoryWatcher(Recorded(*counters[:1001], used(A=5000), *counters[1001:]))
    for _ in range(3000):
        watcher.read()

    readings = watcher.readings()
    assert len(readings) <= 2000
    assert readings[0].device_used_mib == {"A": 0}
    assert watcher.peak().used_mib["A"] == 5000


def test_release_waits_until_memory_is_back():
    """Memory that a driver gives back late is waited for, without a notice."""
    clock = Clock()
    source = Recorded(used(A=900), used(A=500), used(A=110))

    release = wait_for_release(source, {"A": 100}, clock=clock, sleep=clock.sleep)

    assert release.is_back
    assert release.waited_s == pytest.approx(0.5)
    assert release.reference == {"A": 100}
    assert release.notice == ""


def test_memory_that_does_not_come_back_moves_the_reference():
    """What stays beyond the limit is told and becomes the new starting point."""
    clock = Clock()
    source = Recorded(used(A=900, B=10))

    release = wait_for_release(
        source, {"A": 100, "B": 10}, limit_s=30, clock=clock, sleep=clock.sleep
    )

    assert not release.is_back
    assert release.waited_s == pytest.approx(30, abs=1)
    assert release.reference == {"A": 900, "B": 10}
    assert release.notice.startswith("800 MiB on A did not come back within 30 s")


def test_devices_without_counter_are_not_waited_for():
    """An unknown counter, then or now, never holds anything up."""
    clock = Clock()
    source = Recorded({"A": Counter(None, None), "B": Counter(500, None)})

    release = wait_for_release(source, {"A": 1, "B": None}, clock=clock, sleep=clock.sleep)

    assert (release.is_back, release.waited_s) == (True, 0.0)


def test_who_listens_hears_every_reading():
    """Readings of the thread and those taken at once are told as they are kept."""
    heard = []
    with MemoryWatcher(Recorded(used(A=1), used(A=2)), tell=heard.append) as watcher:
        watcher.read()

    assert tuple(heard) == watcher.readings()
    assert len(heard) == 3
