"""`autofit show`: studies, single launches, and errors."""

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
    """The conclusion and every launch are printed on stdout."""
    done = cli("show", study)

    assert done.code == 0
    assert "1.42x as fast" in done.out
    assert "crashed at warmup" in done.out
    assert done.err == ""


def test_json_has_everything(cli, study):
    """The document has header, result, every trial with samples, and skipped candidates."""
    document = json.loads(cli("show", study, "--json").out)

    assert document["study"] == str(study)
    assert document["model_name"] == "Qwen3-30B-A3B-Q4_K_M"
    assert document["result"]["winner"] == RESULT["winner"]
    assert [trial["number"] for trial in document["trials"]] == list(range(1, 18))
    assert document["trials"][0]["measurement"]["samples"]
    assert len(document["skipped"]) == 1


def test_command_of_a_launch_can_be_pasted(cli, study, monkeypatch):
    """The command has a port, and removes the variables that autofit removed."""
    monkeypatch.setenv("LLAMA_ARG_THREADS", "3")

    assert cli("show", study, "--command", 3, "--port", 8123).out == (
        "env -u LLAMA_ARG_THREADS GGML_NO_BACKTRACE=1 "
        "llama-server -m 'model with space.gguf' --port 8123\n"
    )
    document = json.loads(cli("show", study, "--command", 3, "--json").out)
    assert document["argv"][-2:] == ["--port", "8080"]
    assert document["unset"] == ["LLAMA_ARG_THREADS"]


def test_user_config_that_changes_the_command_is_named(cli, study, tmp_path):
    """A notice names a settings file of llama.cpp that autofit hides from its servers."""
    config = tmp_path / "config" / "llama.cpp" / "config.ini"
    config.parent.mkdir(parents=True)
    config.write_text("threads = 1\n")

    assert str(config) in cli("show", study, "--command", 3).err


def test_unknown_launch_is_an_error_with_the_last_number(cli, study):
    """The error for an unknown number has the last number."""
    done = cli("show", study, "--command", 99)

    assert done.code == 2
    assert "no trial 99" in done.err
    assert "up to 17" in done.err


def test_name_of_a_study_is_enough(cli, study, tmp_path, monkeypatch):
    """A name is searched in results/ of the working directory; study.json means its folder."""
    shutil.move(study, tmp_path / "results" / "mine")
    monkeypatch.chdir(tmp_path)

    assert cli("show", "mine").code == 0
    assert cli("show", "results/mine/study.json").code == 0
    done = cli("show", "other")
    assert done.code == 2
    assert "results/mine" in done.err


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        (None, 2, "it has no study.json"),
        (b"", 1, "is damaged"),
        (b"\xff\xfe\x00", 1, "is damaged"),
        (b"[1]", 1, "is damaged"),
        (b'{"schema": 1}', 1, "is damaged"),
        (b'{"schema": 99999}', 1, "newer autofit"),
    ],
)
def test_folders_without_a_study_are_refused(cli, tmp_path, content, code, text):
    """The error for a folder without a readable header names the fault."""
    folder = tmp_path / "folder"
    folder.mkdir()
    if content is not None:
        (folder / "study.json").write_bytes(content)
    done = cli("show", folder)

    assert done.code == code
    assert text in done.err
    assert "hint: " in done.err


def test_file_is_no_study(cli, tmp_path):
    """A file, such as a model, is refused like a folder without a study."""
    (tmp_path / "model.gguf").write_bytes(b"GGUF")

    assert cli("show", tmp_path / "model.gguf").code == 2


def test_raw_bytes_of_a_command_are_printed(tmp_path):
    """A model's path that is not Unicode is printed as its bytes."""
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


@pytest.fixture
def two_studies(tmp_path, monkeypatch):
    """A finished study in results/, and a newer one in the user's data folder."""
    monkeypatch.chdir(tmp_path)
    old = make_study(tmp_path / "results" / "old").path
    new = make_study(tmp_path / "data" / "autofit" / "studies" / "new").path
    os.utime(old / "study.json", (1e9, 1e9))
    return old, new


def test_show_without_a_study_shows_the_newest(cli, two_studies):
    """The newest study of both folders is shown, with its path on stderr."""
    _, new = two_studies

    done = cli("show", "--json")

    assert json.loads(done.out)["study"] == str(new)
    assert str(new) in done.err


def test_show_without_any_study_is_refused(cli, tmp_path, monkeypatch):
    """The hint has the command that makes a study."""
    monkeypatch.chdir(tmp_path)

    done = cli("show")

    assert done.code == 2
    assert "autofit tune" in done.err


def test_studies_are_listed_newest_first(cli, two_studies):
    """Each line has name, model and result; a damaged study does not hide the others."""
    old, new = two_studies
    damaged = old.parent / "damaged"
    damaged.mkdir()
    (damaged / "study.json").write_text("{")
    os.utime(damaged / "study.json", (1e8, 1e8))

    _, *lines = [line.split() for line in cli("studies").out.splitlines()]
    rows = json.loads(cli("studies", "--json").out)["studies"]

    assert [line[0] for line in lines] == ["new", "old", "damaged"]
    assert [row["study"] for row in rows] == [
        str(new),
        str(old.relative_to(old.parents[1])),
        str(damaged.relative_to(old.parents[1])),
    ]
    assert [row["finished"] for row in rows] == [True, True, False]
    assert lines[0][1] == rows[0]["model"] == "Qwen3-30B-A3B-Q4_K_M"


def test_an_empty_list_of_studies(cli, tmp_path, monkeypatch):
    """Without a study, stdout is empty and the exit code is 0."""
    monkeypatch.chdir(tmp_path)

    done = cli("studies")

    assert (done.code, done.out) == (0, "")
