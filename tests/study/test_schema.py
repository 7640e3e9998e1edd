"""Files of an older schema are upgraded step by step when they are read."""

from __future__ import annotations

import pytest
from study.study_sample import trial

from autofit.errors import AutofitError
from autofit.study.schema import SCHEMA, STEPS, Step, upgrade
from autofit.trial.trial import Trial


def _named_in_kib(document):
    """A made-up change: schema 0 called the settings `config` and had no notes."""
    document["params"] = document.pop("config")
    document["notes"] = []
    return document


def test_old_trial_is_upgraded_and_the_original_untouched():
    """A trial of a made-up schema 0 becomes one that today's code reads."""
    today = {"schema": 1, **trial(3).to_dict()}
    old = {key: value for key, value in today.items() if key not in ("params", "notes")}
    old = {**old, "schema": 0, "config": today["params"]}
    before = dict(old)

    upgraded = upgrade(old, "trial", steps={0: Step(trial=_named_in_kib)}, current=1)
    del upgraded["schema"]

    assert Trial.from_dict(upgraded).candidate == trial(3).candidate
    assert old == before


def test_steps_are_taken_in_order_for_the_kind_of_file():
    """Each step starts from the one before, and only its own kind of file is changed."""

    def add(letter):
        return lambda document: {**document, "path": document["path"] + letter}

    steps = {1: Step(study=add("a")), 2: Step(study=add("b"), trial=add("x")), 3: Step()}

    study = upgrade({"schema": 1, "path": ""}, "study", steps=steps, current=4)
    measured = upgrade({"schema": 1, "path": ""}, "trial", steps=steps, current=4)

    assert study == {"schema": 4, "path": "ab"}
    assert measured == {"schema": 4, "path": "x"}


def test_every_earlier_schema_has_its_step():
    """No released schema is left without a way to the next one."""
    assert sorted(STEPS) == list(range(1, SCHEMA))


def test_schema_without_a_step_is_an_error_with_a_hint():
    """A schema too old to upgrade asks for the autofit that wrote it."""
    with pytest.raises(AutofitError, match="no longer supported"):
        upgrade({"schema": -1}, "study")


@pytest.mark.parametrize("version", [None, "1", True, 1.0])
def test_document_without_a_version_is_no_document(version):
    """A file that does not say its schema is not guessed at."""
    with pytest.raises(ValueError, match="no schema"):
        upgrade({"schema": version}, "trial")
