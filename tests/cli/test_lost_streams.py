"""Standard streams that are closed, full or without a reader: measuring goes on."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from autofit_program import AUTOFIT, AutofitProgram
from output.tune_sample import make_study
from tune_machine import TuneMachine

pytestmark = pytest.mark.timeout(120)

BASH = "/bin/bash"  # a POSIX shell cannot write to a program


def run_in_shell(program: AutofitProgram, words: list[str], redirection: str):
    """Run autofit with redirections, and check that no process is left."""
    done = subprocess.run(
        [BASH, "-c", f"set -o pipefail; {shlex.join([*AUTOFIT, *words])} {redirection}"],
        cwd=program.folder,
        env=program.env,
        capture_output=True,
        text=True,
        check=False,
    )
    program.stage.wait_empty()
    assert "Traceback" not in done.stderr
    assert "fault in autofit itself" not in done.stderr
    return done


@pytest.mark.skipif(not Path(BASH).exists(), reason="no bash here")
@pytest.mark.parametrize(
    ("redirection", "code"),
    [
        (">/dev/full 2> >(head -c 50 >/dev/null)", 1),
        ("<&- 2>/dev/full | head -c 50", 0),
    ],
)
def test_a_tune_ends_with_its_result_on_disk(tmp_path, redirection, code):
    """Only a stdout that cannot take the result changes the exit code."""
    machine, program = TuneMachine(tmp_path, 3000.0), AutofitProgram(tmp_path)
    study = tmp_path / "study"
    words = [*machine.words(study, max_launches=1), "--no-answers"]
    done = run_in_shell(program, words, redirection)

    assert done.returncode == code
    result = json.loads((study / "study.json").read_text())["result"]
    assert result["winner"]["proven"]
    assert Path(result["preset"]).is_file()
    assert (study / "report.md").is_file()


@pytest.mark.parametrize(("command", "code"), [("export", 2), ("explain", 0)])
def test_a_closed_stdin_is_empty(tmp_path, command, code):
    """A command that reads stdin gets no text, which is no plan and an empty log."""
    done = run_in_shell(AutofitProgram(tmp_path), [command, "-"], "<&-")

    assert done.returncode == code


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
@pytest.mark.parametrize("command", ["show", "studies", "report", "export"])
def test_characters_that_a_stream_lacks_are_escaped(tmp_path, encoding, command):
    """A terminal of few characters shows the rest as escapes, also of a path of raw bytes."""
    program = AutofitProgram(tmp_path)
    study = tmp_path / os.fsdecode("результат-中".encode() + b"-\xff") / "study"
    study.parent.mkdir()
    make_study(study).close()
    words = [command, *[str(study)] * (command != "studies")]
    done = program.run(*words, PYTHONIOENCODING=encoding)

    assert done.code in (0, 2)
