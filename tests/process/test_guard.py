"""Whatever ends autofit, nothing that it started stays."""

from __future__ import annotations

import marshal
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from process_stage import Stage

from autofit.process import guard


@contextmanager
def owner(stage: Stage, argv: list[str], *, stops: bool = False) -> Iterator[subprocess.Popen]:
    """A program that holds `argv` as autofit would, to be killed by the test."""
    with subprocess.Popen(
        stage.owner(argv, stops=stops),
        env=stage.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        yield process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_signal_to_autofit_ends_the_server(stage: Stage, number: signal.Signals):
    """A signal that ends autofit without any clean-up ends the server and its offspring."""
    kinds = ("--fork", "group", "--fork", "session", "--fork", "daemon")
    with owner(stage, stage.server(*kinds)) as process:
        started = stage.wait_reports(4)
        process.send_signal(number)

        assert process.wait() == -number
        stage.wait_empty()
    assert sorted(stage.reports()[4:]) == sorted(f"{line} term 1" for line in started)


def test_ctrl_c_at_the_terminal_reaches_only_autofit(stage: Stage):
    """SIGINT to autofit's group is autofit's business: the server gets one SIGTERM from it."""
    with owner(stage, stage.server(), stops=True) as process:
        started = stage.wait_reports(1)
        os.killpg(process.pid, signal.SIGINT)
        process.wait()

        stage.wait_empty()
    assert stage.reports()[1:] == [f"{started[0]} term 1"]


def test_wrapper_and_server_end_together(stage: Stage):
    """A wrapper that stays in between is ended with its server."""
    command = " ".join(stage.server())
    with owner(stage, ["sh", "-c", f"{command}; true"]) as process:
        stage.wait_reports(1)
        process.kill()
        process.wait()

        stage.wait_empty()


def test_server_that_ignores_term_is_killed_after_autofit_died(stage: Stage):
    """The guard does not rely on the server's good will."""
    with owner(stage, stage.server("--ignore-term", "--fork", "session")) as process:
        stage.wait_reports(2)
        process.kill()
        process.wait()

        stage.wait_empty()


@pytest.mark.parametrize("seed", range(8))
def test_kill_at_any_moment(stage: Stage, seed: int):
    """A kill -9 at a random moment of starting, running or stopping leaves nothing."""
    delay_s = random.Random(seed).uniform(0.0, 0.25)
    with owner(stage, stage.server("--fork", "group", "--exit-after-s", "0.05")) as process:
        time.sleep(delay_s)
        process.kill()
        process.wait()

        stage.wait_empty()


def test_a_dead_autofit_cuts_a_long_grace_short(stage: Stage):
    """A server that was given a minute to end gets a second once autofit is gone."""
    ours, theirs = socket.socketpair()
    argv = stage.server("--ignore-term")
    message = marshal.dumps((argv[0], argv, stage.env, None, os.getpid()))
    command = [sys.executable, "-I", "-S", guard.__file__]
    with subprocess.Popen(command, stdin=theirs, env=stage.env, start_new_session=True):
        theirs.close()
        ours.sendall(len(message).to_bytes(4, "big") + message)
        stage.wait_reports(1)
        ours.send(b"stop 60.0\n")
        stage.wait_reports(2)
        ours.close()

        stage.wait_empty()


def test_autofit_killed_while_it_stops_a_server(stage: Stage):
    """A kill -9 during the grace does not prolong the server's life."""
    server = stage.server("--ignore-term")
    with owner(stage, server, stops=True) as process:
        stage.wait_reports(1)
        process.send_signal(signal.SIGINT)
        stage.wait_reports(2)
        process.kill()
        process.wait()

        stage.wait_empty()


def test_guard_loads_little():
    """The guard runs without site-packages and without autofit, so that it starts quickly."""
    script = (
        "import sys; path = sys.argv[1]; names = {'__name__': 'guard', '__file__': path}; "
        "exec(compile(open(path).read(), path, 'exec'), names); print(*sys.modules)"
    )

    loaded = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, guard.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    heavy = {"autofit", "subprocess", "pathlib", "typing", "threading", "socket", "contextlib"}
    assert not heavy & set(loaded)
    assert {"marshal", "signal"} <= set(loaded)
