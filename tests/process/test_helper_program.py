"""Short programs: their answer, their limits."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from process_stage import Stage

from autofit.errors import UsageError
from autofit.process import Finished, run


def test_answer(stage: Stage):
    """Both streams and the exit status come back."""
    assert run(
        ["sh", "-c", "echo out; echo err >&2; exit 3"], env=stage.env, timeout_s=20
    ) == Finished(3, "out\n", "err\n")


def test_merged_streams_keep_their_order(stage: Stage):
    """Merged output is in the order in which it was printed."""
    script = "echo one; echo two >&2; echo three"

    finished = run(["sh", "-c", script], env=stage.env, timeout_s=20, merge_stderr=True)

    assert finished.stdout == "one\ntwo\nthree\n"
    assert finished.stderr == ""


def test_output_is_bounded(stage: Stage, tmp_path: Path):
    """More than 4 MiB is read and dropped; the program is not held up."""
    script = "import sys; sys.stdout.write('x' * 9_000_000); print('done', file=sys.stderr)"

    finished = run([sys.executable, "-c", script], env=stage.env, timeout_s=40, cwd=tmp_path)

    assert finished.returncode == 0
    assert finished.stdout == "x" * (4 << 20)
    assert finished.stderr == "done\n"
    assert finished.is_truncated


def test_time_out_ends_the_whole_group(stage: Stage):
    """A program that takes too long is stopped with all that it started."""
    finished = run(
        stage.server("--fork", "group", "--fork", "session", "--ignore-term", "--say", "hello"),
        env=stage.env,
        timeout_s=1.0,
    )

    assert finished.timed_out
    assert finished.returncode == -signal.SIGKILL
    assert finished.stdout == "hello\n"
    assert stage.living() == []


def test_inherited_pipes_do_not_hold_it_up(stage: Stage):
    """A grandchild that keeps the pipes open neither delays the answer nor survives it."""
    script = f"{' '.join(stage.server())} & echo started"

    finished = run(["sh", "-c", script], env=stage.env, timeout_s=20)

    assert finished == Finished(0, "started\n", "")
    assert stage.living() == []


def test_bytes_that_are_no_text(stage: Stage):
    """Invalid UTF-8 is replaced."""
    finished = run(["printf", r"a\377b"], env=stage.env, timeout_s=20)

    assert finished.stdout == "a\ufffdb"


def test_missing_program(stage: Stage):
    """A helper that does not exist is a usage error."""
    with pytest.raises(UsageError, match="no such program"):
        run([str(stage.folder / "none")], env=stage.env, timeout_s=5)
