"""Answers held against those of a reference."""

from __future__ import annotations

import pytest
from quality.answer_sample import answers

from autofit.quality.answer_check import has_narrow_kv, judge_answers
from autofit.quality.interview import Answers
from autofit.trial.candidate import Candidate


def test_answers_that_do_not_pair_up_are_unknown():
    """Answers to other questions are not compared."""
    kept = Answers(tuple(answers(2)))

    found = judge_answers(kept, Answers(tuple(answers(1))), reference_words="A", may_differ=False)

    assert found.verdict == "unknown"
    assert judge_answers(kept, None, reference_words="A", may_differ=True).holds is None


@pytest.mark.parametrize(
    ("keys", "values", "is_narrow"),
    [
        (None, None, False),
        ("f16", "bf16", False),
        ("f32", "f16", False),
        ("q8_0", "q8_0", True),
        ("f16", "q8_0", True),
        ("f16", "unheard_of", True),
    ],
)
def test_one_narrow_cache_is_enough_to_change_answers(keys, values, is_narrow):
    """What is narrower than f16, or not known, may answer otherwise."""
    types = {"cache_type_k": keys, "cache_type_v": values}

    assert has_narrow_kv(Candidate({}).with_params(**types)) is is_narrow
