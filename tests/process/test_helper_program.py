"""Runs of short programs: results and limits."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from process_stage import Stage

from autofit.errors import UsageError
from autofit.process.helper_program import ProgramResult, run_to_end


def test_result_of_a_program(stage: Stage):
    """The result has both streams and the exit status."""
    assert run_to_end(
        ["sh", "-c", "echo out; echo err >&2; exit 3"], env=stage.env, timeout_s=20
    ) == ProgramResult(3, "out\n", "err\n")


def test_merged_streams_keep_their_order(stage: Stage):
    """Merged output is in the order in which it was printed."""
    script = "echo one; echo two >&2; echo three"

    result = run_to_end(["sh", "-c", script], env=stage.env, timeout_s=20, merge_stderr=True)

    assert result.stdout == "one\ntwo\nthree\n"
    assert result.stderr == ""


def test_output_is_bounded(stage: Stage, tmp_path: Path):
    """Output beyond 4 MiB is dropped, and the program does not wait."""
    script = "import sys; sys.stdout.write('x' * 9_000_000); print('done', file=sys.stderr)"

    result = run_to_end([sys.executable, "-c", script], env=stage.env, timeout_s=40, cwd=tmp_path)

    assert result.returncode == 0
    assert result.stdout == "x" * (4 << 20)
    assert result.stderr == "done\n"
    assert result.is_truncated


def test_a_timeout_ends_the_whole_group(stage: Stage):
    """A program that exceeds the limit is stopped with everything that it started."""
    result = run_to_end(
        stage.server("--fork", "group", "--fork", "session", "--ignore-term", "--say", "hello"),
        env=stage.env,
        timeout_s=1.0,
    )

    assert result.timed_out
    assert result.returncode == -signal.SIGKILL
    assert result.stdout == "hello\n"
    assert stage.living() == []


def test_inherited_pipes_do_not_delay_the_result(stage: Stage):
    """A grandchild that keeps the pipes open neither delays the result nor survives it."""
    script = f"{' '.join(stage.server())} & echo started"

    result = run_to_end(["sh", "-c", script], env=stage.env, timeout_s=20)

    assert result == ProgramResult(0, "started\n", "")
    assert stage.living() == []


def test_invalid_utf8_is_replaced(stage: Stage):
    """Bytes that are not UTF-8 are replaced."""
    result = run_to_end(["printf", r"a\377b"], env=stage.env, timeout_s=20)

    assert result.stdout == "a\ufffdb"


def test_a_missing_program_is_an_error(stage: Stage):
    """A program that does not exist is a usage error."""
    with pytest.raises(UsageError, match="no such program"):
        run_to_end([str(stage.folder / "none")], env=stage.env, timeout_s=5)
