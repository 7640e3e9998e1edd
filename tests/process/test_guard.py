"""The guard: whatever ends autofit, nothing that it started stays."""

from __future__ import annotations

import fcntl
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
    """Yield a program that runs `argv` like autofit does, and that the test can kill."""
    with subprocess.Popen(
        stage.owner(argv, stops=stops),
        env=stage.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        yield process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_to_autofit_ends_the_server(stage: Stage, number: signal.Signals):
    """A signal that ends autofit without cleanup ends the server and its descendants."""
    kinds = ("--fork", "group", "--fork", "session", "--fork", "daemon")
    with owner(stage, stage.server(*kinds)) as process:
        started = stage.wait_reports(4)
        process.send_signal(number)

        assert process.wait() == -number
        stage.wait_empty()
    assert sorted(stage.reports()[4:]) == sorted(f"{line} term 1" for line in started)


def test_ctrl_c_at_the_terminal_reaches_only_autofit(stage: Stage):
    """SIGINT goes to autofit's group only, and autofit sends the server one SIGTERM."""
    with owner(stage, stage.server(), stops=True) as process:
        started = stage.wait_reports(1)
        os.killpg(process.pid, signal.SIGINT)
        process.wait()

        stage.wait_empty()
    assert stage.reports()[1:] == [f"{started[0]} term 1"]


def test_a_wrapper_and_its_server_end_together(stage: Stage):
    """A wrapper process ends with its server."""
    command = " ".join(stage.server())
    with owner(stage, ["sh", "-c", f"{command}; true"]) as process:
        stage.wait_reports(1)
        process.kill()
        process.wait()

        stage.wait_empty()


def test_a_server_that_ignores_term_is_killed_after_autofit(stage: Stage):
    """Without autofit, the guard kills a server that ignores SIGTERM."""
    with owner(stage, stage.server("--ignore-term", "--fork", "session")) as process:
        stage.wait_reports(2)
        process.kill()
        process.wait()

        stage.wait_empty()


# Wrappers that stay, and run the server as a child of theirs.
WRAPPERS = {
    "shell": ["sh", "-c", '"$@"; true', "sh"],
    "background": ["sh", "-c", '"$@" & wait', "sh"],
    "script in script": ["sh", "-c", 'sh -c \'"$@"; true\' sh "$@"; true', "sh"],
    "python": [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"],
}


@pytest.mark.skipif(not hasattr(fcntl, "F_SETSIG"), reason="only Linux sends these signals")
@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("with_autofit", [True, False], ids=["autofit and guard", "guard"])
def test_a_killed_guard_leaves_no_server(stage: Stage, wrapper: list[str], *, with_autofit: bool):
    """If the guard is killed, alone or with autofit, no server of a wrapper stays."""
    # Only a living autofit can find what has a session of its own.
    more = () if with_autofit else ("--fork", "session", "--fork", "daemon")
    argv = [*wrapper, *stage.server("--ignore-term", "--fork", "group", *more)]
    with owner(stage, argv) as process:
        stage.wait_reports(2 + len(more) // 2)
        guards = [one for one in stage.living() if guard.__file__ in one.cmdline()]
        assert len(guards) == 1
        if with_autofit:
            process.kill()
        guards[0].kill()

        process.wait()
        stage.wait_empty()


@pytest.mark.skipif(not hasattr(fcntl, "F_SETSIG"), reason="only Linux sends these signals")
def test_a_killed_guard_leaves_no_server_of_a_dead_wrapper(stage: Stage):
    """A server that closed all files it inherited ends with the guard, also without its parent."""
    script = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    argv = [sys.executable, "-c", script, *stage.server("--ignore-term")]
    with owner(stage, argv) as process:
        stage.wait_reports(1)
        guards = [one for one in stage.living() if guard.__file__ in one.cmdline()]
        wrapper = next(one for one in guards[0].children() if script in one.cmdline())
        guards[0].suspend()  # it would end the server itself
        process.kill()
        wrapper.kill()
        guards[0].kill()

        process.wait()
        stage.wait_empty()


@pytest.mark.parametrize("seed", range(8))
def test_autofit_killed_at_any_moment(stage: Stage, seed: int):
    """SIGKILL at a random moment of starting, running or stopping leaves nothing."""
    delay_s = random.Random(seed).uniform(0.0, 0.25)
    with owner(stage, stage.server("--fork", "group", "--exit-after-s", "0.05")) as process:
        time.sleep(delay_s)
        process.kill()
        process.wait()

        stage.wait_empty()


def test_the_death_of_autofit_shortens_the_grace_period(stage: Stage):
    """A server with a minute to end gets a second after the death of autofit."""
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
    """SIGKILL during the grace period does not extend the server's life."""
    server = stage.server("--ignore-term")
    with owner(stage, server, stops=True) as process:
        stage.wait_reports(1)
        process.send_signal(signal.SIGINT)
        stage.wait_reports(2)
        process.kill()
        process.wait()

        stage.wait_empty()


def test_the_guard_imports_little():
    """The guard runs without site-packages and without autofit, to start fast."""
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
