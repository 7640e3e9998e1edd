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
    """Return the plan for a small model on a simulated machine."""
    fake = FakeMachine(tmp_path, machine())
    argv = fake.command(fake.write_model(small_model()), ["--host", LOOPBACK, "-ngl", "0"])
    return LaunchPlan(Candidate({}), tuple(argv), {"GGML_MINE": "1"}, Limits(load_s=20, stop_s=5))


def test_free_port_can_be_bound():
    """Nothing listens on a free port."""
    port = find_free_port()

    with socket.socket() as probe:
        assert probe.connect_ex((LOOPBACK, port)) != 0
        probe.bind((LOOPBACK, port))


def test_server_runs_only_inside_the_block(plan, tmp_path):
    """The server answers inside the block and is stopped at its end."""
    with start_server(plan, load_dialect("llama_server"), tmp_path / "log") as server:
        assert server.wait_ready() is Readiness.READY
        assert server.client.props()["total_slots"] >= 1
        pid = server.process.pid
    assert not psutil.pid_exists(pid)
    assert "{port}" not in (tmp_path / "log").read_text()


def test_error_inside_the_block_stops_the_server(plan, tmp_path):
    """The server is stopped if the block ends with an error."""
    pids = []

    def run() -> None:
        with start_server(plan, load_dialect("llama_server"), tmp_path / "log") as server:
            pids.append(server.process.pid)
            raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        run()
    assert not psutil.pid_exists(pids[0])


def test_server_has_a_clean_environment(plan, tmp_path, monkeypatch):
    """Variables that change settings are removed, and those of the plan are set."""
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "1")
    monkeypatch.setenv("GGML_OP_OFFLOAD_MIN_BATCH", "5")
    monkeypatch.setenv("MINE_TOO", "2")
    with start_server(plan, load_dialect("llama_server"), tmp_path / "log") as server:
        environ = psutil.Process(server.process.pid).environ()
    assert "LLAMA_ARG_CTX_SIZE" not in environ
    assert "GGML_OP_OFFLOAD_MIN_BATCH" not in environ
    assert (environ["GGML_MINE"], environ["MINE_TOO"]) == ("1", "2")
    assert environ["GGML_NO_BACKTRACE"] == "1"


def test_exit_while_loading_is_noticed(plan, tmp_path):
    """A server that exits while it loads is not timed out."""
    failing = LaunchPlan(plan.candidate, (*plan.argv, "--no-such-flag"), plan.env, plan.limits)
    with start_server(failing, load_dialect("llama_server"), tmp_path / "log") as server:
        assert server.wait_ready() is Readiness.EXITED


@pytest.mark.parametrize(
    ("argv", "log", "error"),
    [
        (("/no/such/server",), "log", "no such program"),
        (None, "no/such/folder/log", "cannot write"),
    ],
)
def test_failed_start_is_an_error(plan, tmp_path, argv, log, error):
    """A missing program or folder ends the run."""
    wrong = LaunchPlan(plan.candidate, argv or plan.argv, plan.env, plan.limits)

    block = start_server(wrong, load_dialect("llama_server"), tmp_path / log)
    with pytest.raises(AutofitError, match=error):
        block.__enter__()


READY = "import subprocess, sys, time; print('ready', flush=True)\n"
SLEEPING = READY + "time.sleep(60)"
WORKING = READY + "while True: pass"
PRINTING = READY + "while True:\n time.sleep(.05); print('x', flush=True)"
WAITING_FOR_CHILD = READY + "subprocess.run([sys.executable, '-c', 'while True: pass'])"


@pytest.fixture
def started(tmp_path):
    """Start Python code whose output goes to a log; end it after the test."""
    processes = []

    def start(code: str):
        log = tmp_path / "log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code], stdout=out, start_new_session=True
            )
        processes.append(process)
        while not log.read_text():
            # A short program may print and end between the two checks.
            assert process.poll() is None or log.read_text()
        return process, log

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@pytest.mark.parametrize(
    ("code", "expected"), [(SLEEPING, True), (WORKING, False), (PRINTING, False)]
)
def test_only_an_idle_process_is_hung(started, code, expected):
    """A process that uses CPU time or prints is not hung."""
    process, log = started(code)

    assert is_hung(process.pid, log, observe_s=0.6) is expected


def test_work_of_a_child_is_progress(started):
    """A process that waits for a working child is not hung."""
    process, log = started(WAITING_FOR_CHILD)

    assert is_hung(process.pid, log, observe_s=0.8) is False


def test_exited_process_is_not_hung(started):
    """A process that has exited is not hung."""
    process, log = started(READY)
    process.wait(10)

    assert is_hung(process.pid, log, observe_s=0.1) is False


def test_only_new_kills_are_counted():
    """Kills before the launch do not count, and without a counter the number is unknown."""
    counts = iter([3, 3, 4])
    counter = OomKillCounter(lambda: next(counts))

    assert counter.kills() == 0
    assert counter.kills() == 1
    assert OomKillCounter(lambda: None).kills() is None


def reading(faults, swapped=0.0, available=900.0):
    """Return a reading of a process."""
    return MemoryReading(
        0.0, {}, {}, host_available_mib=available, major_faults=faults, process_swapped_mib=swapped
    )


def test_paging_is_described():
    """Page faults after loading and swapped memory are described, with the free memory."""
    assert describe_paging(reading(90000), reading(90150)) == ""
    assert describe_paging(reading(None), reading(90000)) == ""
    assert "5000 times" in describe_paging(reading(90000), reading(95000))
    assert "900 MiB were available" in describe_paging(reading(90000), reading(95000))
    assert "300 MiB swapped out" in describe_paging(reading(10), reading(10, swapped=300.0))
