"""A server process: its output, its readiness, its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from process_stage import Stage

from autofit.errors import AutofitError, UsageError
from autofit.process.managed_process import _LINE_BYTES, ManagedProcess, OutputTail, Readiness


def start(stage: Stage, *options: str, grace_s: float = 10.0) -> ManagedProcess:
    """Start the misbehaving program."""
    argv = stage.server(*options)
    return ManagedProcess.start(argv, env=stage.env, log_path=stage.log_path, grace_s=grace_s)


def test_output_is_in_file_and_memory(stage: Stage):
    """Both streams go to the log file and to the tail, in order."""
    with start(stage, "--say", "hello", "--exit-after-s", "0") as process:
        assert process.wait(20) == 0

        assert process.tail() == ["hello", "to stderr: hello"]
        assert stage.log_path.read_text() == "hello\nto stderr: hello\n"


def test_standard_input_is_empty(stage: Stage):
    """The standard input of a program ends at once."""
    with ManagedProcess.start(["cat"], env=stage.env, log_path=stage.log_path) as process:
        assert process.wait(20) == 0


def test_the_program_has_its_own_session(stage: Stage):
    """A signal from the terminal does not reach the program."""
    with start(stage) as process:
        assert os.getsid(process.pid) == process.pid != os.getsid(0)


def test_working_directory(stage: Stage, tmp_path: Path):
    """The program runs in the given folder."""
    with ManagedProcess.start(
        ["pwd"], env=stage.env, log_path=stage.log_path, cwd=tmp_path
    ) as process:
        process.wait(20)

        assert process.tail() == [str(tmp_path)]


def test_much_output_does_not_block(stage: Stage):
    """Much output is bounded on disk and in memory."""
    with start(stage, "--spew-bytes", "50500000", "--exit-after-s", "0") as process:
        assert process.wait(50) == 0

        assert stage.log_path.stat().st_size < 10_000_000
        assert process.tail() == ["0123456789" * 10] * 200


def test_invalid_text_is_kept_on_disk_and_cleaned_in_memory(stage: Stage):
    """Invalid bytes are unchanged in the file, and the tail is valid text."""
    with start(stage, "--garbage", "--exit-after-s", "0") as process:
        process.wait(20)

        assert bytes(range(256)) * 20 in stage.log_path.read_bytes()
        assert process.tail()[-1] == "\ufffd\ufffd\ufffd( end"
        assert all(len(line) <= 4096 for line in process.tail())
        assert "".join(process.tail()).isprintable() or "\t" in "".join(process.tail())


def test_ready(stage: Stage):
    """Waiting ends as soon as the check succeeds."""
    with start(stage) as process:
        assert process.wait_ready(lambda: bool(stage.reports()), deadline_s=30) == Readiness.READY
        assert process.poll() is None


def test_an_exit_while_waiting_has_its_output(stage: Stage):
    """A crash at start is an exit and not a timeout, and its last output is available."""
    options = ("--say", "no such model", "--exit-after-s", "0.1", "--status", "3")
    with start(stage, *options) as process:
        assert process.wait_ready(lambda: False, deadline_s=30) == "exited"
        assert process.poll() == 3
        assert process.tail()[0] == "no such model"


def test_another_server_on_the_port_does_not_count(stage: Stage):
    """A successful check of a dead program does not make it ready."""
    with start(stage, "--exit-after-s", "0") as process:
        process.wait(20)

        assert process.wait_ready(lambda: True, deadline_s=5) == Readiness.EXITED


def test_a_silent_hang_times_out(stage: Stage):
    """A program that is never ready times out, and can be stopped."""
    with start(stage) as process:
        assert process.wait_ready(lambda: False, deadline_s=0.2) == Readiness.TIMED_OUT
        assert process.poll() is None
    stage.wait_empty()


def test_term_is_sent_once_to_each_process(stage: Stage):
    """The program, its group and processes outside of the group get one SIGTERM each."""
    kinds = ("--fork", "group", "--fork", "session", "--fork", "daemon")
    with start(stage, *kinds, "--term-takes-s", "0.3") as process:
        started = stage.wait_reports(4)
        process.stop(10)
        process.stop(10)

    ended = stage.reports()[4:]
    assert sorted(ended) == sorted(f"{line} term 1" for line in started)


def test_clean_exit_status_after_term(stage: Stage):
    """A program that ends by itself after SIGTERM has its own exit status."""
    with start(stage, "--status", "7") as process:
        stage.wait_reports(1)

        assert process.stop(10) == 7
        assert process.poll() == 7


def test_an_ignored_term_is_followed_by_kill(stage: Stage):
    """After the grace period everything is killed, also processes in other sessions."""
    kinds = ("--fork", "group", "--fork", "session", "--fork", "daemon")
    process = start(stage, *kinds, "--ignore-term")
    stage.wait_reports(4)

    assert process.stop(0.2) == -signal.SIGKILL
    assert stage.living() == []


def test_ctrl_c_shortens_the_grace_period(stage: Stage):
    """Ctrl-C does not wait for the whole grace period."""
    process = start(stage, "--ignore-term", grace_s=900)
    stage.wait_reports(1)

    with pytest.raises(KeyboardInterrupt), process:
        raise KeyboardInterrupt

    assert process.poll() == -signal.SIGKILL
    assert stage.living() == []


def test_descendants_of_a_dead_program_are_ended(stage: Stage):
    """If the program ends by itself, everything that it started ends too."""
    script = f"{' '.join(stage.server('--ignore-term'))} & sleep 0.2; echo done"
    argv = ["sh", "-c", script]
    with ManagedProcess.start(argv, env=stage.env, log_path=stage.log_path) as process:
        assert process.wait(20) == 0
        assert process.tail() == ["done"]

        process.stop(0.1)

        assert stage.living() == []


def test_stop_during_start(stage: Stage):
    """A stop directly after the start leaves nothing."""
    for _ in range(5):
        assert start(stage).stop(5) in {-signal.SIGTERM, 0}
    assert stage.living() == []


def test_death_by_signal_is_negative(stage: Stage):
    """The exit status of a killed program is its negative signal."""
    with start(stage) as process:
        os.kill(process.pid, signal.SIGKILL)

        assert process.wait(20) == -signal.SIGKILL


def test_stop_without_the_guard(stage: Stage):
    """If the guard was killed, the group is killed and the stop returns."""
    process = start(stage, "--fork", "group")
    stage.wait_reports(2)
    psutil.Process(process.pid).parent().kill()

    assert process.wait(20) == -signal.SIGKILL
    assert process.stop(1) == -signal.SIGKILL
    stage.wait_empty()


def test_a_signal_to_the_guard_stops_the_program(stage: Stage):
    """A signal to the guard ends the program properly."""
    with start(stage) as process:
        stage.wait_reports(1)
        psutil.Process(process.pid).parent().terminate()

        assert process.wait(20) == 0
    assert stage.reports()[1].endswith("term 1")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_error_and_the_server_can_be_stopped(stage: Stage):
    """A log that cannot be written is an error at the next check; reading continues."""
    argv = stage.server("--spew-bytes", "3000000", "--say", "x")
    process = ManagedProcess.start(argv, env=stage.env, log_path=Path("/dev/full"))
    try:
        with pytest.raises(AutofitError, match="No space left") as caught:
            process.wait_ready(lambda: False, deadline_s=30)
        assert "free space" in caught.value.hint
        deadline = time.monotonic() + 20
        while process.tail()[-1:] != ["0123456789" * 10]:
            assert time.monotonic() < deadline
    finally:
        assert process.stop(5) == 0


def test_an_unwritable_log_is_an_error(stage: Stage, tmp_path: Path):
    """Nothing starts if the log cannot be opened."""
    with pytest.raises(AutofitError, match="cannot write"):
        ManagedProcess.start(
            stage.server(), env=stage.env, log_path=tmp_path / "missing" / "server.log"
        )
    assert stage.reports() == []


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (None, 0, "no such program"),
        (b"\x7fELF not really", 0o755, "not a program of this system"),
        (b"plain text", 0o755, "not a program of this system"),
        (b"#!/no/such/interpreter\n", 0o755, "interpreter or loader"),
        (b"#!/etc/passwd\n", 0o755, "interpreter /etc/passwd"),
        (b"#!/etc\n", 0o755, "interpreter /etc"),
        (b"#!/bin/sh\n", 0o644, "not executable"),
    ],
)
def test_programs_that_cannot_start(stage: Stage, content: bytes | None, mode: int, message: str):
    """A program that cannot start is a usage error with a hint."""
    program = stage.folder / "program"
    if content is not None:
        program.write_bytes(content)
        program.chmod(mode)

    with pytest.raises(UsageError, match=message) as caught:
        ManagedProcess.start([str(program)], env=stage.env, log_path=stage.log_path)

    assert caught.value.hint
    stage.wait_empty()


def test_unknown_name_missing_folder_and_bad_argument(stage: Stage):
    """A name not on PATH, a missing working directory and a NUL are usage errors."""
    with pytest.raises(UsageError, match="on PATH"):
        ManagedProcess.start(["no-such-llama"], env=stage.env, log_path=stage.log_path)
    with pytest.raises(UsageError, match="cannot work in"):
        ManagedProcess.start(
            ["true"], env=stage.env, log_path=stage.log_path, cwd=stage.folder / "missing"
        )
    with pytest.raises(UsageError, match="NUL"):
        ManagedProcess.start(["echo", "a\0b"], env=stage.env, log_path=stage.log_path)
    with pytest.raises(UsageError, match="is a folder"):
        ManagedProcess.start([str(stage.folder)], env=stage.env, log_path=stage.log_path)
    stage.wait_empty()


def test_signals_and_descriptors_are_the_defaults(stage: Stage):
    """The program inherits no ignored signals, no blocked ones, and no foreign descriptors."""
    script = (
        "import os, signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), "
        "[s.name for s in (signal.SIGHUP, signal.SIGTERM) if signal.getsignal(s)], "
        "sorted(int(n) for n in os.listdir('/proc/self/fd'))[:3], "
        "len(os.listdir('/proc/self/fd')))"
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ManagedProcess.start(
            [sys.executable, "-S", "-c", script], env=stage.env, log_path=stage.log_path
        ) as process:
            assert process.wait(20) == 0

            # The others are the guard's sign of life and the listed folder.
            assert process.tail() == ["set() [] [0, 1, 2] 5"]
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.runtime
def test_a_real_server_stops_cleanly(stage: Stage, llama_cpp: Path):
    """A real llama-server in router mode becomes ready, and one SIGTERM ends it with 0."""
    argv = [str(llama_cpp / "llama-server"), "--host", "127.0.0.1", "--port", "0", "-lv", "4"]
    with ManagedProcess.start(argv, env=stage.env, log_path=stage.log_path) as process:
        ready = process.wait_ready(
            lambda: "listening" in stage.log_path.read_text(), deadline_s=50
        )

        assert ready == Readiness.READY
        assert process.stop(10) == 0


@given(st.lists(st.binary(max_size=50)), st.integers(1, 5))
def test_the_tail_does_not_depend_on_the_pieces_of_the_stream(pieces: list[bytes], capacity: int):
    """A stream in any pieces has the same tail."""
    whole, parts = OutputTail(capacity), OutputTail(capacity)

    whole.feed(b"".join(pieces))
    for piece in pieces:
        parts.feed(piece)

    assert whole.lines() == parts.lines()
    assert len(whole.lines()) <= capacity


@given(st.lists(st.text(alphabet="abc xyz", max_size=20), min_size=1))
def test_the_tail_keeps_plain_text(lines: list[str]):
    """Ordinary lines are unchanged."""
    tail = OutputTail(len(lines))

    tail.feed("".join(f"{line}\n" for line in lines).encode())

    assert tail.lines() == lines


def test_the_tail_cuts_long_lines():
    """A long line takes bounded memory, and the next line is complete."""
    tail = OutputTail(3)

    for _ in range(100):
        tail.feed(b"x" * 1000)
    tail.feed(b"\nnext\r\n\x1b[31mred\x1b[0m\tx\x07")

    assert tail.lines() == ["x" * _LINE_BYTES, "next", "red\tx\ufffd"]
