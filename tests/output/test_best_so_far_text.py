"""A tune without a winner, on screen and in reports."""

from __future__ import annotations

import io

import pytest
from output.tune_sample import RESULT
from rich.console import Console
from session.test_best_so_far import FAST, GOOD, OWN, in_round
from study.study_sample import header, trial

from autofit.output.report.markdown_report import markdown_report
from autofit.output.text.best_so_far_text import print_best_so_far
from autofit.output.text.study_text import print_study
from autofit.study.study_folder import Study


def study_of(folder, *trials, result=None) -> Study:
    """Return a study with these launches."""
    with Study.create(folder / "study", header()) as study:
        for one in trials:
            study.write_trial(one)
        if result is not None:
            study.conclude(result)
    return Study.open(folder / "study")


def screen(study: Study) -> list[str]:
    """Return the lines of the screen at 80 columns."""
    stream = io.StringIO()
    assert print_best_so_far(study, Console(file=stream, width=80))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("trials", "marks"),
    [
        ((OWN,), ["NOT proven"]),
        ((OWN, FAST, GOOD), ["NOT confirmed", "NOT proven"]),
        ((OWN, GOOD, in_round(OWN, 1, 20, launch=5), in_round(GOOD, 1, 50, launch=6)),
         ["NOT confirmed", "NOT proven"]),
        ((OWN, GOOD, trial(9, phase="prove", n_cpu_moe=20)), ["NOT confirmed", ", proven"]),
    ],
)  # fmt: skip
def test_screen_has_20_lines_with_marks_and_commands(tmp_path, trials, marks):
    """It says what is not shown, how to continue, and how to use the candidate anyway."""
    study = study_of(tmp_path, *trials)
    lines = screen(study)

    assert len(lines) <= 20
    assert lines[2].startswith("Best so far")
    for mark in marks:
        assert mark in lines[3]
    text = "".join(lines)
    assert "--resume" in text
    assert "--unproven" in text


def test_show_and_report_lead_with_it(tmp_path):
    """Both begin with the best so far, its marks and its speeds."""
    study = study_of(tmp_path, OWN, FAST)
    stream = io.StringIO()
    print_study(study, Console(file=stream, width=120))

    for text in (stream.getvalue(), markdown_report(study)):
        first = [line for line in text.splitlines() if line][:6]
        assert any("Best so far" in line for line in first)
        assert any("NOT proven" in line for line in first)
        assert text.index("Best so far") < text.index("Ryzen")


def test_a_result_without_winner_keeps_its_reason(tmp_path):
    """The report also says that nothing was proven."""
    study = study_of(tmp_path, OWN, FAST, result={**RESULT, "winner": None, "preset": None})

    text = markdown_report(study)
    assert "Best so far" in text
    assert "Nothing was proven" in text


def test_a_finished_tune_has_no_such_screen(tmp_path):
    """Nothing is printed."""
    stream = io.StringIO()

    assert not print_best_so_far(study_of(tmp_path, OWN, result=RESULT), Console(file=stream))
    assert stream.getvalue() == ""
