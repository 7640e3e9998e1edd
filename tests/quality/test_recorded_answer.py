"""Recorded answers and the divergence of their tokens."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quality.answer_sample import answer, answers, choice
from scipy import stats

from autofit.quality.recorded_answer import (
    RecordedAnswer,
    comparable_choices,
    token_divergence,
    token_divergences,
)
from autofit.runtime.server.client import Answer, TokenChoice

WEIGHTS = st.lists(st.floats(0.001, 1.0), min_size=3, max_size=6)


def test_answer_is_the_same_after_json():
    """An answer reads back as it was written; token ids stay numbers."""
    (kept,) = answers(1)

    assert RecordedAnswer.from_dict(json.loads(json.dumps(kept.to_dict()))) == kept


def test_recording_leaves_out_times():
    """Times are no part of a comparison."""
    kept = answers(1)[0]
    sent = Answer(kept.text, kept.token_ids, 5, 0, 0.1, 16, 1.0, 0.1, kept.choices)

    assert RecordedAnswer.of(sent) == kept


def test_choices_are_comparable_up_to_the_first_different_token():
    """After different tokens the probabilities are those of different texts."""
    one = answer([{1: 0.9}, {2: 0.6, 3: 0.4}, {4: 0.9}])
    other = answer([{1: 0.8}, {2: 0.4, 3: 0.6}, {4: 0.9}])

    assert len(list(comparable_choices(one, other))) == 2
    assert len(list(comparable_choices(one, one))) == 3


def test_tokens_are_known_without_probabilities():
    """A runtime that reports no probabilities may still report its tokens."""
    assert RecordedAnswer("a b", (1, 2)).tokens == (1, 2)
    assert answer([{1: 0.9}, {2: 0.9}]).tokens == (1, 2)


def _normalized(weights, rest=0.1):
    total = sum(weights) / (1 - rest)
    return {token: weight / total for token, weight in enumerate(weights)}


@given(WEIGHTS)
def test_distribution_does_not_diverge_from_itself(weights):
    """Equal probabilities diverge by nothing."""
    one = choice(_normalized(weights))

    assert token_divergence(one, one) == 0.0


@given(WEIGHTS, WEIGHTS)
def test_divergence_is_never_negative(ours, theirs):
    """However the lists overlap, the divergence is zero or more."""
    shifted = {token + 1: share for token, share in _normalized(theirs).items()}

    assert token_divergence(choice(_normalized(ours)), choice(shifted)) >= 0.0


def test_divergence_of_whole_distributions_agrees_with_scipy():
    """If both sides list the same tokens it is the Kullback-Leibler divergence."""
    ours, theirs = [0.5, 0.3, 0.1, 0.1], [0.4, 0.2, 0.3, 0.1]

    found = token_divergence(
        choice(dict(enumerate(ours[:3]))), choice(dict(enumerate(theirs[:3])))
    )

    assert found == pytest.approx(stats.entropy(ours, theirs))


def test_divergence_of_listed_tokens_is_a_lower_bound():
    """The divergence over ten tokens is never more than over the whole vocabulary."""
    random = np.random.default_rng(5)
    for _ in range(50):
        ours, theirs = random.dirichlet(np.full(200, 0.1), 2) + 1e-12
        listed = [
            choice({int(t): float(p[t]) for t in np.argsort(p)[-10:]}) for p in (ours, theirs)
        ]

        assert token_divergence(*listed) <= stats.entropy(ours, theirs) + 1e-5


def test_unknown_probabilities_have_no_divergence():
    """Without a list there is nothing to compare, which is not zero."""
    assert token_divergence(TokenChoice(1, None), choice({1: 0.9})) is None


def test_probability_that_is_no_number_diverges_infinitely():
    """A runtime that computes nonsense is not taken for one that is close."""
    broken = TokenChoice(1, math.nan, {1: math.nan, 2: -1.0})

    assert token_divergence(choice({1: 0.9, 2: 0.05}), broken) == math.inf
    assert (
        token_divergence(choice({1: 0.9}), TokenChoice(1, -math.inf, {1: -math.inf})) == math.inf
    )


def test_divergences_cover_all_answers():
    """All positions after the same text are compared, answer by answer."""
    kept = answers(3, 5)

    assert token_divergences(kept, kept) == [0.0] * 15
    with pytest.raises(ValueError, match="shorter"):
        token_divergences(kept, kept[:2])
