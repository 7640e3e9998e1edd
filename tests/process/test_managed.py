"""One server: its output, its readiness, its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from process_stage import Stage

from autofit.errors import AutofitError, UsageError
from autofit.process import ManagedProcess, Ready


def start(stage: Stage, *options: str, grace_s: float = 10.0) -> ManagedProcess:
    """The misbehaving program, started."""
    argv = stage.server(*options)
    return ManagedProcess.start(argv, env=stage.env, log_path=stage.log_path, grace_s=grace_s)


def test_output_is_in_file_and_memory(stage: Stage):
    """Both streams go to the log file and to the tail, in order."""
    with start(stage, "--say", "hello", "--exit-after-s", "0") as process:
        assert process.wait(20) == 0

        assert process.tail() == ["hello", "to stderr: hello"]
        assert stage.log_path.read_text() == "hello\nto stderr: hello\n"


def test_standard_input_is_empty(stage: Stage):
    """A program that reads its standard input finds the end at once."""
    with ManagedProcess.start(["cat"], env=stage.env, log_path=stage.log_path) as process:
        assert process.wait(20) == 0


def test_it_leads_a_session_of_its_own(stage: Stage):
    """A signal from the terminal does not reach the program."""
    with start(stage) as process:
        assert os.getsid(process.pid) == process.pid != os.getsid(0)


def test_working_directory(stage: Stage, tmp_path: Path):
    """The program works in the folder it is given."""
    with ManagedProcess.start(
        ["pwd"], env=stage.env, log_path=stage.log_path, cwd=tmp_path
    ) as process:
        process.wait(20)

        assert process.tail() == [str(tmp_path)]


def test_fifty_megabytes_do_not_block(stage: Stage):
    """A flood of output is complete on disk and bounded in memory."""
    with start(stage, "--spew-bytes", "50500000", "--exit-after-s", "0") as process:
        assert process.wait(50) == 0

        assert stage.log_path.stat().st_size == 50_500_000
        assert process.tail() == ["0123456789" * 10] * 200


def test_garbage_is_kept_on_disk_and_cleaned_in_memory(stage: Stage):
    """Bytes that are no text reach the file as they are and the tail as text."""
    with start(stage, "--garbage", "--exit-after-s", "0") as process:
        process.wait(20)

        assert bytes(range(256)) * 20 in stage.log_path.read_bytes()
        assert process.tail()[-1] == "\ufffd\ufffd\ufffd( end"
        assert all(len(line) <= 4096 for line in process.tail())
        assert "".join(process.tail()).isprintable() or "\t" in "".join(process.tail())


def test_ready(stage: Stage):
    """Waiting ends as soon as the check says so."""
    with start(stage) as process:
        assert process.wait_ready(lambda: bool(stage.reports()), deadline_s=30) == Ready.READY
        assert process.poll() is None


def test_exit_while_waiting_is_seen_with_its_evidence(stage: Stage):
    """A crash at start is an exit, never a time-out, and its last words are there."""
    options = ("--say", "no such model", "--exit-after-s", "0.1", "--status", "3")
    with start(stage, *options) as process:
        assert process.wait_ready(lambda: False, deadline_s=30) == "exited"
        assert process.poll() == 3
        assert process.tail()[0] == "no such model"


def test_another_server_on_the_port_does_not_count(stage: Stage):
    """A check that succeeds for a dead program is not ready."""
    with start(stage, "--exit-after-s", "0") as process:
        process.wait(20)

        assert process.wait_ready(lambda: True, deadline_s=5) == Ready.EXITED


def test_silent_hang_times_out(stage: Stage):
    """A program that never gets ready is given up at the deadline, and still stopped."""
    with start(stage) as process:
        assert process.wait_ready(lambda: False, deadline_s=0.2) == Ready.TIMED_OUT
        assert process.poll() is None
    stage.wait_empty()


def test_term_is_sent_once_to_each_process(stage: Stage):
    """The program, its group and processes that left the group get one SIGTERM each."""
    kinds = ("--fork", "group", "--fork", "session", "--fork", "daemon")
    with start(stage, *kinds, "--term-takes-s", "0.3") as process:
        started = stage.wait_reports(4)
        process.stop(10)
        process.stop(10)

    ended = stage.reports()[4:]
    assert sorted(ended) == sorted(f"{line} term 1" for line in started)


def test_clean_exit_status_after_term(stage: Stage):
    """A program that ends properly on SIGTERM keeps its own exit status."""
    with start(stage, "--status", "7") as process:
        stage.wait_reports(1)

        assert process.stop(10) == 7
        assert process.poll() == 7


def test_ignored_term_ends_in_kill(stage: Stage):
    """After the grace everything is killed, processes in other sessions too."""
    kinds = ("--fork", "group", "--fork", "session", "--fork", "daemon")
    process = start(stage, *kinds, "--ignore-term")
    stage.wait_reports(4)

    assert process.stop(0.2) == -signal.SIGKILL
    assert stage.living() == []


def test_an_impatient_user_is_not_kept_waiting(stage: Stage):
    """Ctrl-C does not wait for the whole grace, which outlives this test."""
    process = start(stage, "--ignore-term", grace_s=900)
    stage.wait_reports(1)

    with pytest.raises(KeyboardInterrupt), process:
        raise KeyboardInterrupt

    assert process.poll() == -signal.SIGKILL
    assert stage.living() == []


def test_leftovers_of_a_dead_program_are_ended(stage: Stage):
    """When the program ends by itself, what it started ends too, pipes or not."""
    script = f"{' '.join(stage.server('--ignore-term'))} & sleep 0.2; echo done"
    argv = ["sh", "-c", script]
    with ManagedProcess.start(argv, env=stage.env, log_path=stage.log_path) as process:
        assert process.wait(20) == 0
        assert process.tail() == ["done"]

        process.stop(0.1)

        assert stage.living() == []


def test_stop_during_start(stage: Stage):
    """A stop at once after the start leaves nothing."""
    for _ in range(5):
        assert start(stage).stop(5) in {-signal.SIGTERM, 0}
    assert stage.living() == []


def test_death_by_signal_is_negative(stage: Stage):
    """A killed program has its signal as exit status."""
    with start(stage) as process:
        os.kill(process.pid, signal.SIGKILL)

        assert process.wait(20) == -signal.SIGKILL


def test_stop_survives_the_loss_of_the_guard(stage: Stage):
    """When somebody kills the guard, the group is killed and the stop returns."""
    process = start(stage, "--fork", "group")
    stage.wait_reports(2)
    psutil.Process(process.pid).parent().kill()

    assert process.wait(20) == -signal.SIGKILL
    assert process.stop(1) == -signal.SIGKILL
    stage.wait_empty()


def test_term_to_the_guard_stops_the_program(stage: Stage):
    """A signal to the guard ends the program properly."""
    with start(stage) as process:
        stage.wait_reports(1)
        psutil.Process(process.pid).parent().terminate()

        assert process.wait(20) == 0
    assert stage.reports()[1].endswith("term 1")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_is_told_and_the_server_can_be_stopped(stage: Stage):
    """A log that cannot be written raises at the next check; output goes on being read."""
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


def test_unwritable_log_is_an_error(stage: Stage, tmp_path: Path):
    """Nothing is started when its log cannot be opened."""
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
        (b"#!/no/such/interpreter\n", 0o755, "interpreter or loader is missing"),
        (b"#!/etc/passwd\n", 0o755, "its interpreter /etc/passwd may not be executed"),
        (b"#!/etc\n", 0o755, "its interpreter /etc may not be executed"),
        (b"#!/bin/sh\n", 0o644, "not executable"),
    ],
)
def test_what_cannot_be_started(stage: Stage, content: bytes | None, mode: int, message: str):
    """A program that cannot be started is a usage error with a hint."""
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


def test_signals_and_files_are_as_a_program_expects(stage: Stage):
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

            # The fourth descriptor is the folder being listed.
            assert process.tail() == ["set() [] [0, 1, 2] 4"]
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.runtime
def test_real_server_stops_cleanly(stage: Stage, llama_cpp: Path):
    """A real llama-server in router mode gets ready, and one SIGTERM ends it with 0."""
    argv = [str(llama_cpp / "llama-server"), "--host", "127.0.0.1", "--port", "0", "-lv", "4"]
    with ManagedProcess.start(argv, env=stage.env, log_path=stage.log_path) as process:
        ready = process.wait_ready(
            lambda: "listening" in stage.log_path.read_text(), deadline_s=50
        )

        assert ready == Ready.READY
        assert process.stop(10) == 0
