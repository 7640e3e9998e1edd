"""`autofit report`: Markdown and HTML of a study."""

from __future__ import annotations

import shutil

import pytest
from output.tune_sample import RESULT, make_study

PRESET = "version = 1\n\n[tiny]\nmodel = /models/tiny.gguf\n"


def test_markdown_goes_to_the_study_and_to_stdout(cli, tmp_path):
    """report.md and stdout are the same text."""
    study = make_study(tmp_path / "study")
    done = cli("report", study.path)

    assert done.code == 0
    assert "1.42x as fast" in done.out
    assert (study.path / "report.md").read_text() == done.out


@pytest.mark.parametrize("named", ["presets/winner.ini", "/moved/since/presets/winner.ini"])
def test_preset_of_the_tune_is_in_the_report(cli, tmp_path, named):
    """The report has the preset, also for a study that was moved."""
    study = make_study(tmp_path / "study", result={**RESULT, "preset": named})
    study.write_output("presets/winner.ini", PRESET)

    assert PRESET.strip() in cli("report", study.path).out


def test_html_goes_to_a_file_and_nothing_to_stdout(cli, tmp_path):
    """With --html one file is written, and report.md as always."""
    study = make_study(tmp_path / "study")
    done = cli("report", study.path, "--html", tmp_path / "report.html")

    assert (done.code, done.out) == (0, "")
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (study.path / "report.md").exists()
    assert cli("report", study.path, "--html", "-").out.startswith("<!DOCTYPE html>")


def test_report_of_a_study_without_a_winner(cli, tmp_path):
    """A study without a proof, or that has not ended, still has a report."""
    lost = make_study(tmp_path / "lost", result={**RESULT, "winner": None, "preset": None})
    unfinished = make_study(tmp_path / "unfinished", result=None)

    assert "Nothing was proven" in cli("report", lost.path).out
    assert "--resume" in cli("report", unfinished.path).out


def test_unwritable_targets_are_refused(cli, tmp_path):
    """A folder, or a file in a missing folder, is refused with a hint."""
    study = make_study(tmp_path / "study")

    into_folder = cli("report", study.path, "--html", tmp_path)
    assert (into_folder.code, "is a folder" in into_folder.err) == (2, True)
    nowhere = cli("report", study.path, "--html", tmp_path / "no" / "r.html")
    assert nowhere.code == 2
    assert f"mkdir -p {tmp_path / 'no'}" in nowhere.err
    full = cli("report", study.path, "--html", "/dev/full")
    assert (full.code, "No space left" in full.err) == (1, True)


def test_read_only_study_is_still_reported(cli, tmp_path):
    """If report.md cannot be written, the report is still printed, with a notice."""
    study = make_study(tmp_path / "study")
    (study.path / "report.md").mkdir()
    done = cli("report", study.path)

    assert done.code == 0
    assert "1.42x as fast" in done.out
    assert "report.md was not written" in done.err


def test_missing_study_is_a_usage_error(cli, tmp_path):
    """A study that does not exist ends with 2."""
    shutil.rmtree(make_study(tmp_path / "study").path)

    assert cli("report", tmp_path / "study").code == 2
