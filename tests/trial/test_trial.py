"""Trials survive being written and read."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from trial.purpose_sample import purpose_of
from trial.trial_strategy import trials

from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Completed, Crashed
from autofit.trial.trial import Trial

SEARCH = purpose_of("search")


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(trials)
def test_a_trial_survives_json(trial):
    """A trial reads back as it was written."""
    data = json.loads(json.dumps(trial.to_dict()))

    assert Trial.from_dict(data) == trial


def test_params_keep_their_types():
    """A number, a text that looks like one and a truth value stay apart."""
    params = {"threads": 8, "tensor_split": "8", "flash_attn": True, "zeta": 8.0}
    trial = Trial(1, SEARCH, Candidate(params), Completed())

    read = Trial.from_dict(json.loads(json.dumps(trial.to_dict())))

    assert {name: type(value) for name, value in read.candidate.params.items()} == {
        "threads": int,
        "tensor_split": str,
        "flash_attn": bool,
        "zeta": float,
    }


def test_trials_of_before_a_field_was_added_are_read():
    """What an older version did not write is empty."""
    data = Trial(1, SEARCH, Candidate({}), Completed()).to_dict()
    for name in (
        *("purpose", "round", "side", "subject", "kv_types", "reason"),
        *("layout", "is_verbatim", "notes", "fidelity", "preparation"),
    ):
        del data[name]

    assert Trial.from_dict(data) == Trial(1, SEARCH, Candidate({}), Completed())


@pytest.mark.parametrize("name", ["number", "phase", "role", "params", "outcome", "measurement"])
def test_invalid_trials_are_refused(name):
    """Data that lacks what every trial has is not taken for one."""
    data = Trial(1, SEARCH, Candidate({}), Completed()).to_dict()
    del data[name]

    with pytest.raises(KeyError, match=name):
        Trial.from_dict(data)


def test_only_completed_launches_did_all_they_were_asked():
    """A failure, however late, is not completed."""
    assert Trial(1, SEARCH, Candidate({}), Completed()).is_completed
    assert not Trial(1, SEARCH, Candidate({}), Crashed("stop", "exit 1")).is_completed


@pytest.mark.parametrize(
    ("fidelity", "outcome", "shows"),
    [
        ("load", Completed(), True),
        ("load", Crashed("load", "exit 1"), False),
        ("short", Completed(), False),
        (None, Completed(), False),
    ],
)
def test_a_launch_that_only_loaded_measured_nothing(fidelity, outcome, shows):
    """What fits and was asked no more is known from what was measured, and from what failed."""
    trial = Trial(1, purpose_of("boundary"), Candidate({}), outcome, fidelity=fidelity)

    assert trial.shows_fit_only is shows
