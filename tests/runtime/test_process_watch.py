"""What counters of the kernel and of a process tell of a server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from autofit.runtime.server.server_process import OomKillCounter, describe_paging, is_hung
from autofit.trial.measurement import MemoryReading

SAY = "import subprocess, sys, time; print('ready', flush=True)\n"
SLEEPS = SAY + "time.sleep(60)"
WORKS = SAY + "while True: pass"
TALKS = SAY + "while True:\n time.sleep(.05); print('x', flush=True)"
WAITS_FOR_WORK = SAY + "subprocess.run([sys.executable, '-c', 'while True: pass'])"


@pytest.fixture
def started(tmp_path):
    """Starts Python code whose output goes to a log; ends it after the test."""
    processes = []

    def start(code: str):
        log = tmp_path / "log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code], stdout=out, start_new_session=True
            )
        processes.append(process)
        while not log.read_text():
            # A short one may say its word and end between the two looks.
            assert process.poll() is None or log.read_text()
        return process, log

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@pytest.mark.parametrize(("code", "is_still"), [(SLEEPS, True), (WORKS, False), (TALKS, False)])
def test_only_a_process_that_does_nothing_stands_still(started, code, is_still):
    """CPU time or output is progress."""
    process, log = started(code)

    assert is_hung(process.pid, log, observe_s=0.6) is is_still


def test_work_of_offspring_is_progress(started):
    """A wrapper waits while its server works."""
    process, log = started(WAITS_FOR_WORK)

    assert is_hung(process.pid, log, observe_s=0.8) is False


def test_process_that_is_gone_does_not_stand_still(started):
    """Its exit says more."""
    process, log = started(SAY)
    process.wait(10)

    assert is_hung(process.pid, log, observe_s=0.1) is False


def test_kills_are_counted_from_the_start_of_watching():
    """Kills before the launch are not its own; a kernel that does not count says nothing."""
    counts = iter([3, 3, 4])
    kills = OomKillCounter(lambda: next(counts))

    assert kills.kills() == 0
    assert kills.kills() == 1
    assert OomKillCounter(lambda: None).kills() is None


def reading(faults, swapped=0.0, available=900.0):
    """What was seen of a process."""
    return MemoryReading(
        0.0, {}, {}, host_available_mib=available, major_faults=faults, process_swapped_mib=swapped
    )


def test_paging_is_noted_only_while_the_server_computes():
    """Loading reads the file, which is no want of memory."""
    assert describe_paging(reading(90000), reading(90150)) == ""
    assert describe_paging(reading(None), reading(90000)) == ""
    assert "5000 times" in describe_paging(reading(90000), reading(95000))
    assert "900 MiB were available" in describe_paging(reading(90000), reading(95000))
    assert "300 MiB swapped out" in describe_paging(reading(10), reading(10, swapped=300.0))
