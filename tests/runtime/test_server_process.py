"""The process of a server: start, environment, hangs, kills and paging."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from fakes.machine_fixtures import FakeMachine
from runtime.launch_sample import machine, small_model

from autofit.errors import AutofitError
from autofit.process.managed_process import Readiness
from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.server.server_process import (
    LOOPBACK,
    OomKillCounter,
    describe_paging,
    find_free_port,
    is_hung,
    start_server,
)
from autofit.trial.candidate import Candidate, LaunchPlan, Limits
from autofit.trial.measurement import MemoryReading


@pytest.fixture
def plan(tmp_path):
    """How a small model is served on a simulated machine."""
    fake = FakeMachine(tmp_path, machine())
    argv = fake.command(fake.write_model(small_model()), ["--host", LOOPBACK, "-ngl", "0"])
    return LaunchPlan(Candidate({}), tuple(argv), {"GGML_MINE": "1"}, Limits(load_s=20, stop_s=5))


def test_free_ports_can_be_bound():
    """A port is asked from the system, and nothing listens on it."""
    port = find_free_port()

    with socket.socket() as probe:
        assert probe.connect_ex((LOOPBACK, port)) != 0
        probe.bind((LOOPBACK, port))


def test_a_server_is_up_inside_the_block_only(plan, tmp_path):
    """It answers once ready, and is gone when the block is left."""
    with start_server(plan, load_dialect("llama_server"), tmp_path / "log") as server:
        assert server.wait_ready(lambda: None) is Readiness.READY
        assert server.client.props()["total_slots"] >= 1
        pid = server.process.pid
    assert not psutil.pid_exists(pid)
    assert "{port}" not in (tmp_path / "log").read_text()


def test_an_error_inside_the_block_ends_the_server_too(plan, tmp_path):
    """Whatever ends the block, nothing is left."""
    pids = []

    def run() -> None:
        with start_server(plan, load_dialect("llama_server"), tmp_path / "log") as server:
            pids.append(server.process.pid)
            raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        run()
    assert not psutil.pid_exists(pids[0])


def test_a_server_sees_a_clean_environment(plan, tmp_path, monkeypatch):
    """What would change its settings is taken away, what the plan sets is there."""
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "1")
    monkeypatch.setenv("GGML_OP_OFFLOAD_MIN_BATCH", "5")
    monkeypatch.setenv("MINE_TOO", "2")
    with start_server(plan, load_dialect("llama_server"), tmp_path / "log") as server:
        environ = psutil.Process(server.process.pid).environ()
    assert "LLAMA_ARG_CTX_SIZE" not in environ
    assert "GGML_OP_OFFLOAD_MIN_BATCH" not in environ
    assert (environ["GGML_MINE"], environ["MINE_TOO"]) == ("1", "2")
    assert environ["GGML_NO_BACKTRACE"] == "1"


def test_a_server_that_ends_while_loading_is_seen_at_once(plan, tmp_path):
    """Its exit is no time-out."""
    failing = LaunchPlan(plan.candidate, (*plan.argv, "--no-such-flag"), plan.env, plan.limits)
    with start_server(failing, load_dialect("llama_server"), tmp_path / "log") as server:
        assert server.wait_ready(lambda: None) is Readiness.EXITED


def test_waiting_can_be_stopped(plan, tmp_path):
    """The check that is made while waiting may end it."""

    def stop() -> None:
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        start_server(plan, load_dialect("llama_server"), tmp_path / "log") as server,
    ):
        server.wait_ready(stop)


@pytest.mark.parametrize(
    ("argv", "log", "told"),
    [
        (("/no/such/server",), "log", "no such program"),
        (None, "no/such/folder/log", "cannot write"),
    ],
)
def test_what_cannot_start_ends_the_run(plan, tmp_path, argv, log, told):
    """A missing program or folder is no candidate's failure."""
    wrong = LaunchPlan(plan.candidate, argv or plan.argv, plan.env, plan.limits)

    block = start_server(wrong, load_dialect("llama_server"), tmp_path / log)
    with pytest.raises(AutofitError, match=told):
        block.__enter__()


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
