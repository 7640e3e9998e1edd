"""`autofit show`: studies, single launches, and what is said where there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from output.tune_sample import RESULT, make_study


@pytest.fixture
def study(tmp_path):
    """A finished study."""
    return make_study(tmp_path / "study").path


def test_study_is_shown(cli, study):
    """The conclusion and every launch come out on stdout."""
    done = cli("show", study)

    assert done.code == 0
    assert "42% faster than the baseline" in done.out
    assert "crashed at warmup" in done.out
    assert done.err == ""


def test_json_holds_everything(cli, study):
    """The document has header, result, every trial with its samples, and what was skipped."""
    told = json.loads(cli("show", study, "--json").out)

    assert told["study"] == str(study)
    assert told["model_name"] == "Qwen3-30B-A3B-Q4_K_M"
    assert told["result"]["winner"] == RESULT["winner"]
    assert [trial["number"] for trial in told["trials"]] == list(range(1, 18))
    assert told["trials"][0]["measurement"]["samples"]
    assert len(told["skipped"]) == 1


def test_command_of_a_launch_can_be_pasted(cli, study, monkeypatch):
    """The command has a port, and takes away variables that autofit would have taken away."""
    monkeypatch.setenv("LLAMA_ARG_THREADS", "3")

    assert cli("show", study, "--command", 3, "--port", 8123).out == (
        "env -u LLAMA_ARG_THREADS GGML_NO_BACKTRACE=1 "
        "llama-server -m 'model with space.gguf' --port 8123\n"
    )
    told = json.loads(cli("show", study, "--command", 3, "--json").out)
    assert told["argv"][-2:] == ["--port", "8080"]
    assert told["unset"] == ["LLAMA_ARG_THREADS"]


def test_user_config_that_would_change_the_command_is_told(cli, study, tmp_path):
    """A settings file of llama.cpp, which autofit hides from its servers, is named."""
    config = tmp_path / "config" / "llama.cpp" / "config.ini"
    config.parent.mkdir(parents=True)
    config.write_text("threads = 1\n")

    assert str(config) in cli("show", study, "--command", 3).err


def test_unknown_launch_lists_what_there_is(cli, study):
    """A number without a launch says how far they go."""
    done = cli("show", study, "--command", 99)

    assert done.code == 2
    assert "no trial 99" in done.err
    assert "up to 17" in done.err


def test_name_of_a_study_is_enough(cli, study, tmp_path, monkeypatch):
    """A name is looked up in results/ of the working directory; study.json means its folder."""
    shutil.move(study, tmp_path / "results" / "mine")
    monkeypatch.chdir(tmp_path)

    assert cli("show", "mine").code == 0
    assert cli("show", "results/mine/study.json").code == 0
    done = cli("show", "other")
    assert done.code == 2
    assert "results/mine" in done.err


@pytest.mark.parametrize(
    ("content", "code", "told"),
    [
        (None, 2, "it has no study.json"),
        (b"", 1, "is damaged"),
        (b"\xff\xfe\x00", 1, "is damaged"),
        (b"[1]", 1, "is damaged"),
        (b'{"schema": 1}', 1, "is damaged"),
        (b'{"schema": 99999}', 1, "newer autofit"),
    ],
)
def test_folders_that_are_no_study_are_told(cli, tmp_path, content, code, told):
    """A folder without a readable head says what is wrong with it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    if content is not None:
        (folder / "study.json").write_bytes(content)
    done = cli("show", folder)

    assert done.code == code
    assert told in done.err
    assert "hint: " in done.err


def test_file_is_no_study(cli, tmp_path):
    """A file, such as a model, is refused like a folder without a study."""
    (tmp_path / "model.gguf").write_bytes(b"GGUF")

    assert cli("show", tmp_path / "model.gguf").code == 2


def test_raw_bytes_of_a_command_come_back(tmp_path):
    """A model's path that is no Unicode is printed as the bytes it has."""
    study = make_study(tmp_path / "study")
    file = study.path / "trials" / "0003.json"
    data = json.loads(file.read_text())
    data["argv"][2] = os.fsdecode(b"/models/\xff.gguf")
    file.write_text(json.dumps(data))
    done = subprocess.run(
        [sys.executable, "-m", "autofit", "show", study.path, "--command", "3"],
        capture_output=True,
        timeout=30,
        check=True,
    )

    assert b"/models/\xff.gguf" in done.stdout
