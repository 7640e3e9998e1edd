"""Studies of earlier versions are opened, reported and resumed as today's are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from autofit.output.report.markdown_report import markdown_report
from autofit.runtime.server.request_plan import plan_fit_test
from autofit.session.budget import Budget
from autofit.session.runner import TrialRunner
from autofit.study.study_folder import Study

FOLDERS = sorted(Path(__file__).parents[2].glob("results/reference/*/study.json"))


@pytest.fixture(params=[path.parent for path in FOLDERS], ids=lambda path: path.name)
def folder(request) -> Path:
    """A study that was measured on real cards."""
    return request.param


def written_trials(folder: Path) -> list[dict]:
    """The trials as their files have them."""
    return [
        json.loads(path.read_text()) for path in sorted(folder.glob("trials/[0-9]*[0-9].json"))
    ]


def test_every_trial_is_read(folder):
    """Number, phase, params and outcome are those of the files, and nothing is left out."""
    study = Study.open(folder)

    assert [
        (trial.number, trial.phase, dict(trial.candidate.params), trial.outcome.kind)
        for trial in study.trials()
    ] == [
        (data["number"], data["phase"], data["params"], data["outcome"]["kind"])
        for data in written_trials(folder)
    ]
    assert study.notices == []


def test_purposes_are_typed(folder):
    """Rounds have their number and side, other trials the role that their phase allows."""
    written = [data["purpose"] for data in written_trials(folder)]
    for trial, text in zip(Study.open(folder).trials(), written, strict=True):
        purpose = trial.purpose
        if purpose.role == "round":
            words = text.replace("repeat", "round").split(" of ")
            assert words == [f"round {purpose.round}", purpose.side][: len(words)]
        elif purpose.role in ("baseline", "explore", "proof"):
            assert purpose.description == text
        else:
            assert text.startswith("answers of")
        assert trial.layout not in ("A", "B")


def test_a_report_is_written(folder):
    """Each study, concluded or not, has its report."""
    assert len(markdown_report(Study.open(folder)).splitlines()) > 20


def test_a_resumed_study_repeats_no_launch(folder, tmp_path):
    """Asked for the same launches again, a runner takes all from the study."""
    path = Path(shutil.copytree(folder, tmp_path / "study"))
    with Study.resume(path, Study.open(path).header) as study:
        known = study.trials()
        runner = TrialRunner(
            study=study,
            launching=None,
            budget=Budget(lambda: 0.0),
            emit=lambda _: None,
            wall_clock=lambda: 0.0,
        )
        request_plan = plan_fit_test(study.header.workload, 512)
        taken = [runner.run(trial.purpose, trial.candidate, request_plan) for trial in known]

    assert {trial.number for trial in taken} == {trial.number for trial in known}
