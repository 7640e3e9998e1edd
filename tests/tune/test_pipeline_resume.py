"""A tune of an earlier version is resumed without repeating a launch."""

from __future__ import annotations

import json
from pathlib import Path

from quality.simulated_answers import KvChanges
from session.simulated_launching import SimulatedLaunching
from tune.whole_tune import one_card, whole_tune

# What schema 2 added; schema 1 had a sentence and the layout instead.
_TYPED = ("role", "round", "side", "subject", "kv_types", "reason", "is_verbatim")
_SUBJECTS = {"baseline": "the baseline", "finalist": "a finalist", "winner": "the winner"}


def _downgrade(path: Path) -> None:
    """Write a trial as schema 1 had it."""
    data = json.loads(path.read_text())
    if data["subject"]:
        data["purpose"] = f"answers of {_SUBJECTS[data['subject']]}"
    old = {name: value for name, value in data.items() if name not in _TYPED}
    path.write_text(json.dumps({**old, "schema": 1}))


def test_a_tune_of_schema_1_is_taken_from_its_study(tmp_path):
    """Baseline, search, answers, rounds and proof are recognised by what their sentences say."""
    task, folder = one_card(tmp_path), tmp_path / "study"
    changes = KvChanges({"q8_0": 0.3})
    first = whole_tune(folder, task, SimulatedLaunching(client_of=changes), max_launches=8)
    assert {trial.purpose.role for trial in first.trials} >= {
        *("baseline", "explore", "round", "proof", "answers", "reference_answers"),
    }
    for path in folder.glob("trials/[0-9]*[0-9].json"):
        _downgrade(path)

    again = whole_tune(folder, task, SimulatedLaunching(client_of=changes), max_launches=8)

    assert again.launched == 0
    assert again.result["winner"] == first.result["winner"]
    assert [trial.purpose for trial in again.trials] == [trial.purpose for trial in first.trials]
