"""Pipes, devices and folders in place of every file that a command reads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parents[2] / "results" / "reference" / "h200-12gb-chat"
COMMANDS = (
    ("check", "FILE"),
    ("check", "FILE", "--against-machine"),
    ("plan", "FILE", "--device", "A=12288"),
    ("import", "FILE"),
    ("compare", "FILE", "FILE"),
    ("explain", "FILE"),
    ("replay", "FILE"),
    ("sweep", "FILE"),
    ("show", "FILE"),
    ("report", "FILE"),
    ("export", "FILE", "--format", "shell", "-o", "-"),
)


def _put(kind: str, path: Path) -> None:
    """Put something that is no file in a place."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.fixture(params=["pipe", "device", "folder"])
def kind(request) -> str:
    """Something that is no file."""
    return request.param


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_file_that_is_none_is_a_fault_of_the_user(words, kind, cli, tmp_path, monkeypatch):
    """Every command names it and ends at once, without waiting for it or reading it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "special.yaml"
    _put(kind, path)
    ended = cli(*(path if word == "FILE" else word for word in words))

    assert ended.code == 2
    assert "special.yaml" in ended.err
    assert ended.err.startswith("autofit: ")


@pytest.mark.parametrize("name", ["study.json", "trials/0002.json", "skipped.jsonl"])
def test_a_part_of_a_study_that_is_no_file(name, kind, cli, tmp_path, monkeypatch):
    """A study without its head cannot be read; any other part is left out with a notice."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "study"
    shutil.copytree(REFERENCE, folder)
    _put(kind, folder / name)
    export = ["export", folder, "--format", "shell", "-o", "-"]
    for words in (["show", folder], ["report", folder], export):
        ended = cli(*words)
        assert "fault in autofit itself" not in ended.err
        assert ended.code in ((1, 2) if name == "study.json" else (0, 1, 2))
    if name == "trials/0002.json":
        assert "0002" in cli("show", folder).out


def test_a_pipe_with_a_writer_is_a_log(tmp_path):
    """`explain` reads a named pipe and what a shell puts in place of a file."""
    log = tmp_path / "server.log"
    log.write_text("error: invalid argument: --wrong\n")
    autofit = f"{sys.executable} -m autofit explain"
    for script in (
        f"mkfifo p; (sleep 0.5; cat {log}) > p & {autofit} p",
        f"{autofit} <(cat {log})",
    ):
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "unknown flag" in done.stdout or "unknown_flag" in done.stdout
