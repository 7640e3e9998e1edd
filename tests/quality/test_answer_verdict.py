"""Which KV types a verdict speaks of."""

from __future__ import annotations

import pytest

from autofit.quality.answer_check import AnswerCheck
from autofit.quality.answer_verdict import QualityGate
from autofit.trial.candidate import Candidate


def _candidate(types: str) -> Candidate:
    keys, values = types.split("/")
    return Candidate({"cache_type_k": keys, "cache_type_v": values})


def _check(verdict: str) -> AnswerCheck:
    return AnswerCheck(verdict, "the baseline", None, None, ())


@pytest.fixture
def verdicts() -> QualityGate:
    """Verdicts of a run that found one pair of types poor, one good and could not tell of one."""
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
def test_what_keeps_fewer_bits_than_a_poor_type_is_as_poor(verdicts, types, is_poor):
    """Both caches count: one that is wider than the poor pair's may be good enough."""
    assert verdicts.is_poor(_candidate(types)) is is_poor


def test_a_type_of_as_many_bits_is_judged_by_itself(verdicts):
    """Types that take as much memory may keep more of a number."""
    verdicts.scored = {("q4_0", "q4_0"): _check("poor")}

    assert not verdicts.is_poor(_candidate("iq4_nl/iq4_nl"))
    assert verdicts.is_poor(_candidate("q4_0/q4_0"))


def test_nothing_is_open_where_answers_mean_nothing(verdicts):
    """Without anyone to ask, no KV type waits for its score."""
    assert not verdicts.is_open(_candidate("q4_1/q8_0"))
