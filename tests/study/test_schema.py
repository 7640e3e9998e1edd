"""Files of an older schema are upgraded step by step when they are read."""

from __future__ import annotations

import pytest
from study.study_sample import trial

from autofit.errors import AutofitError
from autofit.study.schema import SCHEMA, STEPS, Step, upgrade
from autofit.trial.purpose import TrialPurpose
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


@pytest.mark.parametrize(
    ("phase", "layout", "text", "fields"),
    [
        ("baseline", "runtime_fit", "the runtime's own choice", {"role": "baseline"}),
        ("boundary", "balanced", "does it fit?", {"role": "fit_check"}),
        ("search", "balanced", "the best guess", {"role": "explore", "reason": "the best guess"}),
        ("confirm", "balanced", "round 3", {"role": "round", "round": 3, "side": ""}),
        ("confirm", "A", "round 2 of A", {"role": "round", "round": 2, "side": "A"}),
        ("confirm", "", "round 1 of n_cpu_moe=5", {"role": "round", "side": "n_cpu_moe=5"}),
        ("confirm", "balanced", "repeat 2", {"role": "round", "round": 2}),
        ("confirm", "balanced", "", {"role": "round"}),
        ("prove", "frozen", "full context, twice", {"role": "proof"}),
        ("prove", "", "answers of a finalist", {"role": "answers", "subject": "finalist"}),
        ("prove", "", "answers of the winner", {"role": "answers", "subject": "winner"}),
        (
            *("prove", "runtime_fit", "answers of the baseline with f16 KV"),
            {"role": "reference_answers", "subject": "baseline"},
        ),
        (
            *("prove", "", "answers of the winner with f16 KV on the host"),
            {"role": "reference_answers", "subject": "winner"},
        ),
        (
            *("prove", "", "answers of q4_0 against f16 KV by llama-perplexity: kept"),
            {"role": "kl_base", "kv_types": ["q4_0", "q4_0"]},
        ),
        (
            *("prove", "", "answers of q8_0/q4_0 against f16 KV by llama-perplexity: scored"),
            {"role": "kl_score", "kv_types": ["q8_0", "q4_0"]},
        ),
    ],
)
@pytest.mark.parametrize("kind", ["trial", "mark"])
def test_a_sentence_of_schema_1_becomes_fields(kind, phase, layout, text, fields):
    """Its purpose is typed, and the side of a comparison and the runtime's fit have fields."""
    old = {"schema": 1, "phase": phase, "layout": layout, "purpose": text}

    new = upgrade(old, kind)

    assert {name: new[name] for name in fields} == fields
    assert TrialPurpose.from_dict(new).phase == phase
    assert new["layout"] == ("" if layout == "A" else layout)
    assert new["is_verbatim"] is (layout in ("A", "runtime_fit"))


@pytest.mark.parametrize(
    ("layout", "is_baseline"), [("frozen", True), ("runtime_fit", True), ("balanced", False)]
)
def test_a_winner_of_schema_1_that_is_the_baseline_is_marked(layout, is_baseline):
    """Its layout's name said so."""
    new = upgrade({"schema": 1, "result": {"winner": {"layout": layout}}}, "study")

    assert new["result"]["winner"]["is_baseline"] is is_baseline


@pytest.mark.parametrize("result", [None, {}, {"winner": None}])
def test_a_study_of_schema_1_without_a_winner_stays_so(result):
    """What is not there is not marked."""
    assert upgrade({"schema": 1, "result": result}, "study")["result"] == result
