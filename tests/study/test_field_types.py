"""Types of what was read from a study's files."""

from __future__ import annotations

import json
import math

import pytest
from study.study_sample import header, trial

from autofit.cli.main import _run
from autofit.study.field_types import require_types
from autofit.study.study_folder import Study

DAMAGES = {
    "phase": None,
    "seconds": math.inf,
    "argv": [1, 2],
    "env": [],
    "notes": 3,
    "layout": ["a"],
    "started_at": "yesterday",
}


@pytest.fixture
def study(tmp_path):
    """A study of three launches."""
    with Study.create(tmp_path / "study", header()) as made:
        for number in (1, 2, 3):
            made.write_trial(trial(number))
        made.conclude({"winner": None})
    return tmp_path / "study"


def _damage(study, name, value) -> None:
    path = study / "trials" / "0002.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


def test_what_a_study_writes_has_its_types(study):
    """Nothing that was kept is refused."""
    opened = Study.open(study)

    for found in opened.trials():
        require_types(found)
    assert opened.notices == []


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_launch_is_left_out_with_a_notice(study, name, capsys):
    """Whichever field is damaged: show, report and the other launches go on, and say so."""
    _damage(study, name, DAMAGES[name])

    opened = Study.open(study)
    assert [found.number for found in opened.trials()] == [1, 3]
    (notice,) = opened.notices
    assert notice.startswith("trials/0002.json cannot be read and was left out: TypeError: ")

    for words in (["show"], ["report"], ["show", "--command", "3"], ["report", "--html", "-"]):
        capsys.readouterr()
        assert _run([words[0], str(study), *words[1:]]) == 0
        told = capsys.readouterr()
        shown = " ".join((told.out + told.err).split())
        assert "trials/0002.json cannot be read and was left out" in shown


def test_a_damaged_sample_is_told_by_its_place(study):
    """The name of a field leads through what holds it."""
    path = study / "trials" / "0002.json"
    data = json.loads(path.read_text())
    data["measurement"]["samples"][0]["prompt_tokens"] = "many"
    path.write_text(json.dumps(data))

    opened = Study.open(study)

    assert len(opened.trials()) == 2
    assert "measurement.samples.prompt_tokens cannot be 'many'" in opened.notices[0]
