"""`autofit export`: a study's winner in every format."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from output.tune_sample import RESULT, make_study
from results.study_sample import header
from runtime.stand_in import write_program

from autofit.output.preset.format import FORMATS
from autofit.results.study import Study

ARGUMENTS = ["-m", "/models/my model.gguf", "--n-cpu-moe", "20", "--host", "127.0.0.1"]


@pytest.fixture
def program(tmp_path) -> Path:
    """A runtime with a real help text."""
    return write_program(tmp_path / "bin")


@pytest.fixture
def study(tmp_path, program) -> Path:
    """A study whose winner ran on that runtime."""
    return _study(tmp_path / "study", str(program), [str(program), *ARGUMENTS])


def _study(path: Path, runtime: str, argv: list[str], dialect: str = "llama_server") -> Path:
    result = {**RESULT, "winner": {**RESULT["winner"], "argv": argv}}
    with Study.create(path, header(runtime_path=runtime, dialect=dialect)) as study:
        study.conclude(result)
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_written(cli, study, name):
    """Each known format carries the winner's settings to stdout."""
    done = cli("export", study, "--format", name)

    assert done.code == 0
    assert "20" in done.out
    assert "model" in done.out
    assert done.err == ""


def test_shell_script_starts_the_runtime(cli, tmp_path, program, study):
    """The script may be executed, and becomes the runtime with the winner's arguments."""
    done = cli("export", study, "--format", "shell", "-o", tmp_path / "serve.sh")

    assert (done.code, done.out) == (0, "")
    assert str(tmp_path / "serve.sh") in done.err
    # The stand-in notes what it is asked and fails.
    assert subprocess.run([tmp_path / "serve.sh"], timeout=10, check=False).returncode == 1
    asked = (program.parent / "asked").read_text().splitlines()[-1]
    assert asked.startswith("-m /models/my model.gguf --n-cpu-moe 20 --host 127.0.0.1")


def test_file_is_replaced_and_a_device_is_not(cli, tmp_path, study):
    """An older file gives way, a link stays a link, a device stays a device."""
    (tmp_path / "real.args").write_text("old")
    (tmp_path / "link.args").symlink_to("real.args")

    assert cli("export", study, "--format", "args", "-o", tmp_path / "link.args").code == 0
    assert (tmp_path / "link.args").is_symlink()
    assert "--n-cpu-moe 20" in (tmp_path / "real.args").read_text()
    assert cli("export", study, "--format", "args", "-o", os.devnull).code == 0
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("words", [[], ["--format", "yaml"]])
def test_unknown_format_lists_the_known(cli, study, words):
    """Without a known format, those that there are are listed."""
    done = cli("export", study, *words)

    assert done.code == 2
    assert f"known: {', '.join(FORMATS)}" in done.err


def test_runtime_that_is_gone_still_gives_what_needs_no_help(cli, tmp_path):
    """Without the runtime a script can be written, an ini file cannot."""
    study = _study(tmp_path / "study", "/gone/llama-server", ["/gone/llama-server", *ARGUMENTS])

    done = cli("export", study, "--format", "args")
    assert done.code == 0
    assert shlex.split(done.out)[2:] == ["/gone/llama-server", *ARGUMENTS, "--port", "8080"]
    assert "cannot be asked" in done.err
    refused = cli("export", study, "--format", "ini")
    assert refused.code == 2
    assert "`args`, `shell` or `json`" in refused.err


def test_runtime_that_has_moved_can_be_named(cli, tmp_path, program):
    """--runtime takes the place of the tune's own program; one that is none is refused."""
    study = _study(
        tmp_path / "study", "/gone/llama-server", ["nice", "/gone/llama-server", *ARGUMENTS]
    )

    told = json.loads(cli("export", study, "--format", "json", "--runtime", program).out)
    assert told["wrapper"] == ["nice"]
    assert told["program"] == [str(program)]
    assert told["arguments"][: len(ARGUMENTS)] == ARGUMENTS
    done = cli("export", study, "--format", "json", "--runtime", tmp_path / "none")
    assert (done.code, "no such runtime" in done.err) == (2, True)


def test_embedded_runtime_of_another_python_is_known(cli, tmp_path):
    """A study made by another Python's embedded runtime is served by this one's."""
    argv = ["/old/python", "-m", "autofit.runtime.embedded", *ARGUMENTS]
    study = _study(tmp_path / "study", "/old/xllamacpp.so", argv, dialect="embedded")

    done = cli("export", study, "--format", "args")
    assert shlex.split(done.out)[2:5] == [sys.executable, "-m", "autofit.runtime.embedded"]


def test_file_names_of_arguments_are_made_absolute(cli, tmp_path, program, monkeypatch):
    """A relative file name is taken from the working directory, and that is said."""
    argv = [str(program), *ARGUMENTS, "--chat-template-file", "mine.jinja"]
    study = _study(tmp_path / "study", str(program), argv)
    monkeypatch.chdir(tmp_path)

    done = cli("export", study, "--format", "args")
    assert str(tmp_path / "mine.jinja") in done.out
    assert f"taken from {tmp_path}" in done.err


@pytest.mark.parametrize(
    ("result", "told"),
    [(None, "is not finished"), ({**RESULT, "winner": None}, "has no winner")],
)
def test_study_without_a_winner_is_refused(cli, tmp_path, result, told):
    """There is nothing to export of a tune that is not finished or proved nothing."""
    study = make_study(tmp_path / "study", result=result)
    done = cli("export", study.path, "--format", "ini")

    assert done.code == 2
    assert told in done.err
    assert str(study.path) in done.err.splitlines()[1]


def test_settings_that_were_not_proven_are_marked(cli, tmp_path, program):
    """A winner without proof is exported with a warning, in the file and beside it."""
    winner = {**RESULT["winner"], "argv": [str(program), *ARGUMENTS], "proven": False}
    with Study.create(tmp_path / "study", header(runtime_path=str(program))) as study:
        study.conclude({**RESULT, "winner": winner})

    done = cli("export", tmp_path / "study", "--format", "ini")
    assert "NOT proven" in done.err
    assert "NOT proven" in done.out


@pytest.mark.runtime
def test_winner_on_the_real_runtime(cli, tmp_path, llama_cpp):
    """With the real llama-server's help the ini names its flags."""
    program = llama_cpp / "llama-server"
    study = _study(tmp_path / "study", str(program), [str(program), *ARGUMENTS])

    assert "n-cpu-moe = 20" in cli("export", study, "--format", "ini").out
    assert "LLAMA_ARG_N_CPU_MOE=20" in cli("export", study, "--format", "env").out
