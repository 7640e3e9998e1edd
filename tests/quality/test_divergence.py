"""How far apart two distributions of the next token are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quality.answer_sample import answers, choice
from scipy import stats

from autofit.quality.divergence import divergence, divergences
from autofit.runtime.server.client import TokenChoice

CHANCES = st.lists(st.floats(0.001, 1.0), min_size=3, max_size=6)


def _listed(weights, rest=0.1):
    total = sum(weights) / (1 - rest)
    return {token: weight / total for token, weight in enumerate(weights)}


@given(CHANCES)
def test_a_distribution_does_not_diverge_from_itself(weights):
    """Equal chances diverge by nothing."""
    one = choice(_listed(weights))

    assert divergence(one, one) == 0.0


@given(CHANCES, CHANCES)
def test_a_divergence_is_never_negative(ours, theirs):
    """However the lists overlap, the divergence is zero or more."""
    shifted = {token + 1: chance for token, chance in _listed(theirs).items()}

    assert divergence(choice(_listed(ours)), choice(shifted)) >= 0.0


def test_whole_distributions_agree_with_scipy():
    """Where both list the same tokens it is the Kullback-Leibler divergence."""
    ours, theirs = [0.5, 0.3, 0.1, 0.1], [0.4, 0.2, 0.3, 0.1]

    found = divergence(choice(dict(enumerate(ours[:3]))), choice(dict(enumerate(theirs[:3]))))

    assert found == pytest.approx(stats.entropy(ours, theirs))


def test_a_part_of_the_vocabulary_shows_no_more_than_all_of_it():
    """What is told of ten tokens is never more than the divergence over all of them."""
    random = np.random.default_rng(5)
    for _ in range(50):
        ours, theirs = random.dirichlet(np.full(200, 0.1), 2) + 1e-12
        listed = [
            choice({int(t): float(p[t]) for t in np.argsort(p)[-10:]}) for p in (ours, theirs)
        ]

        assert divergence(*listed) <= stats.entropy(ours, theirs) + 1e-5


def test_unknown_chances_have_no_divergence():
    """Without a list there is nothing to compare, which is not zero."""
    assert divergence(TokenChoice(1, None), choice({1: 0.9})) is None


def test_what_is_no_number_is_infinitely_far():
    """A runtime that computes nonsense does not pass for one that is close."""
    broken = TokenChoice(1, math.nan, {1: math.nan, 2: -1.0})

    assert divergence(choice({1: 0.9, 2: 0.05}), broken) == math.inf
    assert divergence(choice({1: 0.9}), TokenChoice(1, -math.inf, {1: -math.inf})) == math.inf


def test_every_shared_place_counts():
    """All places after the same text are compared, answer by answer."""
    kept = answers(3, 5)

    assert divergences(kept, kept) == [0.0] * 15
    with pytest.raises(ValueError, match="shorter"):
        divergences(kept, kept[:2])
