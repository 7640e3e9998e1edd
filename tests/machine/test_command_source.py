"""Memory counters from a program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autofit.errors import AutofitError
from autofit.machine.command_source import CommandSource, parse_counters
from autofit.machine.memory_watcher import Counter


def script(folder: Path, text: str) -> list[str]:
    """The command line of a shell script that also counts how often it ran."""
    path = folder / "memory.sh"
    path.write_text(f"echo run >> {folder}/runs\n{text}\n")
    return ["sh", str(path)]


def test_lines_become_counters():
    """Lines `NAME total free used` are read, others ignored."""
    text = "header\nCUDA0 24576 1000.5 23575.5\n  RPC0 100 90 10  \nCUDA1 1 2\n"

    assert parse_counters(text) == {"CUDA0": Counter(23575.5, 1000.5), "RPC0": Counter(10, 90)}


def test_command_is_asked(tmp_path: Path):
    """The counters are what the command prints, with the environment of the runtime."""
    source = CommandSource(
        script(tmp_path, "echo CUDA0 $TOTAL 60 40"), env={**os.environ, "TOTAL": "100"}
    )

    assert source.read() == {"CUDA0": Counter(40, 60)}


def test_every_reading_is_of_now(tmp_path: Path):
    """No answer is given twice: one from before a load would tell of free memory."""
    source = CommandSource(script(tmp_path, f"echo A 10 5 $(wc -l < {tmp_path}/runs)"), env={})

    assert [source.read()["A"].used_mib for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("text", ["exit 3", "echo nonsense", "echo A 1 1 0; exit 1"])
def test_failing_command_is_told(tmp_path: Path, text: str):
    """A command that fails or answers nonsense is an error with a hint."""
    with pytest.raises(AutofitError, match="memory command") as caught:
        CommandSource(script(tmp_path, text), env=os.environ).read()

    assert "NAME total free used" in caught.value.hint
