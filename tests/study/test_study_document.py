"""Documents of a study folder: upgrades of old files, and the check of types."""

from __future__ import annotations

import json
import math

import pytest
from study.study_sample import header, trial

from autofit.cli.main import _run
from autofit.errors import AutofitError
from autofit.study.study_document import SCHEMA, UPGRADES, SchemaUpgrade, require_types, upgrade
from autofit.study.study_folder import Study
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial


def _rename_config(document):
    """Change an invented schema 0, which called the settings `config` and had no notes."""
    document["params"] = document.pop("config")
    document["notes"] = []
    return document


def test_an_old_trial_is_upgraded_as_a_copy():
    """A trial of an invented schema 0 is readable after the upgrade."""
    today = {"schema": 1, **trial(3).to_dict()}
    old = {key: value for key, value in today.items() if key not in ("params", "notes")}
    old = {**old, "schema": 0, "config": today["params"]}
    before = dict(old)

    upgraded = upgrade(old, "trial", upgrades={0: SchemaUpgrade(trial=_rename_config)}, current=1)

    assert Trial.from_dict(upgraded).candidate == trial(3).candidate
    assert old == before


def test_upgrades_are_applied_in_order_for_the_kind_of_file():
    """Each upgrade starts from the result of the previous one, for its kind of file."""

    def add(letter):
        return lambda document: {**document, "path": document["path"] + letter}

    upgrades = {
        1: SchemaUpgrade(study=add("a")),
        2: SchemaUpgrade(study=add("b"), trial=add("x")),
        3: SchemaUpgrade(),
    }

    study = upgrade({"schema": 1, "path": ""}, "study", upgrades=upgrades, current=4)
    measured = upgrade({"schema": 1, "path": ""}, "trial", upgrades=upgrades, current=4)

    assert study == {"path": "ab"}
    assert measured == {"path": "x"}


def test_every_earlier_schema_has_an_upgrade():
    """Every released schema can be upgraded to the next one."""
    assert sorted(UPGRADES) == list(range(1, SCHEMA))


def test_a_schema_without_an_upgrade_is_an_error():
    """A schema that is too old is an error with a hint."""
    with pytest.raises(AutofitError, match="no longer supported"):
        upgrade({"schema": -1}, "study")


@pytest.mark.parametrize("version", [None, "1", True, 1.0])
def test_a_document_without_a_version_is_damaged(version):
    """A file without a valid schema is damaged."""
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
    """The purpose, the side of a comparison and the runtime's fit become fields."""
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
    """The name of its layout shows that the winner is the baseline."""
    new = upgrade({"schema": 1, "result": {"winner": {"layout": layout}}}, "study")

    assert new["result"]["winner"]["is_baseline"] is is_baseline


@pytest.mark.parametrize("result", [None, {}, {"winner": None}])
def test_a_study_of_schema_1_without_a_winner_stays_so(result):
    """Without a winner nothing changes."""
    assert upgrade({"schema": 1, "result": result}, "study")["result"] == result


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
    """Return a study with three launches."""
    with Study.create(tmp_path / "study", header()) as made:
        for number in (1, 2, 3):
            made.write_trial(trial(number))
        made.conclude({"winner": None})
    return tmp_path / "study"


def _damage(study, name, value) -> None:
    path = study / "trials" / "0002.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


def test_written_trials_have_their_types(study):
    """The data that a study writes passes the check."""
    opened = Study.open(study)

    for found in opened.trials():
        require_types(found)
    assert opened.notices == []


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_launch_is_ignored_with_a_notice(study, name, capsys):
    """With any damaged field, `show` and `report` work with the other launches and say so."""
    _damage(study, name, DAMAGES[name])

    opened = Study.open(study)
    assert [found.number for found in opened.trials()] == [1, 3]
    (notice,) = opened.notices
    assert notice.startswith("trials/0002.json is damaged")

    for words in (["show"], ["report"], ["show", "--command", "3"], ["report", "--html", "-"]):
        capsys.readouterr()
        assert _run([words[0], str(study), *words[1:]]) == 0
        printed = capsys.readouterr()
        shown = " ".join((printed.out + printed.err).split())
        assert "trials/0002.json is damaged" in shown


def test_a_damaged_sample_is_named_by_its_path(study):
    """The name of a field includes the fields that contain it."""
    path = study / "trials" / "0002.json"
    data = json.loads(path.read_text())
    data["measurement"]["samples"][0]["prompt_tokens"] = "many"
    path.write_text(json.dumps(data))

    opened = Study.open(study)

    assert len(opened.trials()) == 2
    assert "measurement.samples.prompt_tokens cannot be 'many'" in opened.notices[0]
