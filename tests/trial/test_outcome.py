"""Outcomes: a tagged union that survives being written."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from trial.trial_strategy import outcomes

from autofit.trial.outcome import (
    Outcome,
    OutOfMemory,
    is_memory_failure,
    outcome_from_dict,
    outcome_to_dict,
)

KINDS = [outcome.kind for outcome in get_args(Outcome)]


@given(outcomes)
def test_an_outcome_survives_json(outcome):
    """An outcome of any kind reads back as it was written, its kind first."""
    data = outcome_to_dict(outcome)

    assert next(iter(data)) == "kind"
    assert outcome_from_dict(json.loads(json.dumps(data))) == outcome


def test_the_kinds_are_those_of_the_contract():
    """Users rely on the names of the kinds."""
    assert sorted(KINDS) == [
        "completed",
        "crashed",
        "incorrect",
        "out_of_memory",
        "rejected",
        "skipped",
        "spilled",
        "timed_out",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_read(kind):
    """No kind was left out of the table that reading looks into."""
    data = {"kind": kind, "stage": "load", "evidence": "a line"}

    outcome = outcome_from_dict(data)

    assert (outcome.kind, outcome.stage, outcome.evidence) == (kind, "load", "a line")


def test_an_unknown_kind_is_refused():
    """An unknown kind is refused, not guessed."""
    with pytest.raises(KeyError, match="vanished"):
        outcome_from_dict({"kind": "vanished", "stage": "load", "evidence": ""})


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "crashed", "stage": "load"},
        {"kind": "crashed", "stage": "load", "evidence": "", "colour": "red"},
    ],
)
def test_a_missing_or_unknown_field_is_refused(data):
    """An outcome is all of its fields and no others."""
    with pytest.raises(TypeError):
        outcome_from_dict(data)


@given(outcomes)
def test_memory_failures_are_those_that_asked_for_too_much(outcome):
    """Refused allocations and spills are about memory, other failures are not."""
    assert is_memory_failure(outcome) == (outcome.kind in ("out_of_memory", "spilled"))


def test_a_failure_names_its_stage():
    """Only what ran to the end or never began has a stage of its own accord."""
    with pytest.raises(TypeError, match="stage"):
        OutOfMemory(evidence="cudaMalloc failed: out of memory")
