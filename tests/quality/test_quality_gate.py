"""KV types that the gate lets pass."""

from __future__ import annotations

import pytest

from autofit.quality.answer_check import AnswerCheck
from autofit.quality.quality_gate import QualityGate
from autofit.trial.candidate import Candidate


def _candidate(types: str) -> Candidate:
    keys, values = types.split("/")
    return Candidate({"cache_type_k": keys, "cache_type_v": values})


def _check(verdict: str) -> AnswerCheck:
    return AnswerCheck(verdict, "the baseline", None, None, ())


@pytest.fixture
def gate() -> QualityGate:
    """Return the gate of a run with a poor, a good and an unknown pair of KV types."""
    found = QualityGate(None, lambda _: None)
    found.scored = {
        ("q8_0", "q5_1"): _check("poor"),
        ("f16", "q8_0"): _check("good"),
        ("q8_0", "f16"): _check("unknown"),
    }
    return found


@pytest.mark.parametrize(
    ("types", "is_poor"),
    [
        ("q8_0/q5_1", True),
        ("q8_0/q4_0", True),
        ("q5_1/q5_1", True),
        ("q4_0/q4_0", True),
        ("q8_0/q8_0", False),
        ("f16/q5_1", False),
        ("f16/q4_0", False),
        ("f16/q8_0", False),
        ("q8_0/f16", False),
        ("f16/f16", False),
    ],
)
def test_types_narrower_than_a_poor_pair_are_poor(gate, types, is_poor):
    """Both caches count: if one is wider than that of the poor pair, the pair may pass."""
    assert gate.is_poor(_candidate(types)) is is_poor


def test_type_of_equal_width_is_judged_by_itself(gate):
    """Types that take as much memory may be more exact."""
    gate.scored = {("q4_0", "q4_0"): _check("poor")}

    assert not gate.is_poor(_candidate("iq4_nl/iq4_nl"))
    assert gate.is_poor(_candidate("q4_0/q4_0"))


def test_nothing_is_open_without_an_evaluator(gate):
    """If answers mean nothing, no KV type waits for its score."""
    assert not gate.is_open(_candidate("q4_1/q8_0"))
