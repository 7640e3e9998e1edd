"""A machine that is ready to measure: questions, waits, and hints about other programs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from autofit.cli.machine_ready import ask, ready_machine
from autofit.cli.options.shared_options import RunOptions
from autofit.cli.run_setup import _make_folder
from autofit.machine.lock import machine_lock

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("y\n", True), (" YES \n", True), ("n\n", False), ("\n", False), ("yo\n", False)],
)
def test_only_yes_is_yes(capsys, typed, answer):
    """Any other answer is no; the question names the option that avoids it."""
    reading, writing = os.openpty()
    os.write(writing, typed.encode())
    with os.fdopen(reading) as terminal:
        assert ask("Measure anyway?", terminal, limit_s=20) == answer
    os.close(writing)

    assert "--yes" in capsys.readouterr().err


@pytest.mark.parametrize("is_closed", [False, True])
def test_no_answer_is_no(is_closed):
    """A question without an answer ends by itself, with the safe answer."""
    reading, writing = os.pipe()
    if is_closed:
        os.close(writing)
    with os.fdopen(reading) as terminal:
        assert ask("Measure anyway?", terminal, limit_s=0.05) is False
    if not is_closed:
        os.close(writing)


@pytest.mark.parametrize("words", [("tune",), ("probe",), ("compare",), ("sweep",)])
def test_a_wait_that_takes_the_model_for_its_time_is_explained(cli, words):
    """`--wait MODEL` says how to write it, and not that the model is missing."""
    done = cli(*words, "--wait", "model.gguf")

    assert done.code == 2
    assert "'model.gguf' is not a duration" in done.err
    assert "--wait=30m" in done.err


def test_without_a_wait_the_machine_is_not_locked(tmp_path, monkeypatch):
    """A command that prints command lines only runs next to another autofit."""
    monkeypatch.setenv("AUTOFIT_LOCK_DIR", str(tmp_path / "lock"))
    with ready_machine(None, "of a model"), machine_lock("other"):
        pass

    assert "other" in (tmp_path / "lock" / "autofit.holder.json").read_text()


def test_a_run_that_shares_the_machine_needs_no_lock(tmp_path, monkeypatch):
    """A demo runs next to another autofit, and does not keep a third one from measuring."""
    monkeypatch.setenv("AUTOFIT_LOCK_DIR", str(tmp_path / "lock"))
    study = tmp_path / "study"
    with _make_folder(RunOptions(study, locks_machine=False), "demo"), machine_lock("a tune"):
        assert not (tmp_path / "study").exists()
    with machine_lock("a tune"), _make_folder(RunOptions(study, locks_machine=False), "demo"):
        pass


def test_no_text_suggests_to_end_the_processes_of_others():
    """Hints and advice name another time or place, never `kill` or `stop` for foreign programs."""
    words = r"`kill|\bkill -|stop (?:it|them|what|other|that)\b|end other"
    suggestion = re.compile(words, re.IGNORECASE)
    files = [*REPOSITORY.glob("autofit/**/*.py"), *REPOSITORY.glob("runners/*.yaml")]
    quoted = re.compile(r'"([^"\n]*)"')
    found = [
        f"{file.name}: {text}"
        for file in files
        for text in quoted.findall(file.read_text(encoding="utf-8"))
        if suggestion.search(text)
    ]

    assert found == []
