"""Sequential tests: their level, their intervals, and their agreement with scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from autofit.statistics.estimate import center
from autofit.statistics.sequential_tests import (
    sign_flip_interval,
    sign_flip_rejects_zero,
    t_critical_values,
    t_interval,
)

SPENDABLE = {8: 0.01, 9: 0.02, 10: 0.03, 11: 0.04, 12: 0.05}


def test_a_single_look_is_students_t():
    """With one look the critical value of t is the ordinary one."""
    assert t_critical_values((0.05,)) == pytest.approx((stats.t.ppf(0.975, 2),))


def test_alpha_saved_for_the_last_look_gives_the_ordinary_t_test():
    """If nearly nothing is spent before the last look, that look is an ordinary t-test."""
    spent = (*(1e-9 * (k + 1) for k in range(9)), 0.05)

    assert t_critical_values(spent)[-1] == pytest.approx(stats.t.ppf(0.975, 11), rel=0.005)


@pytest.mark.parametrize(
    "spent",
    [
        tuple(0.05 * k / 12 for k in range(3, 13)),
        tuple(0.05 * (k / 12) ** 3 for k in range(3, 13)),
        tuple(0.2 * k / 6 for k in range(3, 7)),
    ],
)
def test_boundaries_are_crossed_as_often_as_spent(spent):
    """On equal normal values the share of crossings up to a look is the alpha spent up to it."""
    looks = np.arange(3, 3 + len(spent))
    values = np.random.default_rng(4).standard_normal((200_000, looks[-1]))
    sums, squares = np.cumsum(values, axis=1), np.cumsum(values**2, axis=1)
    means = sums[:, looks - 1] / looks
    variances = (squares[:, looks - 1] - looks * means**2) / (looks - 1)

    crossed = np.abs(means) / np.sqrt(variances / looks) > t_critical_values(spent)

    share = np.maximum.accumulate(crossed, axis=1).mean(axis=0)
    assert share == pytest.approx(spent, abs=0.0015)


def test_t_interval_is_students():
    """The interval at a critical value of t is the textbook one."""
    values = [0.1, 0.3, 0.2, 0.4]

    low, high = t_interval(values, stats.t.ppf(0.975, 3))

    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))


def _sign_flip_interval(values, spendable=SPENDABLE):
    return sign_flip_interval(values, spendable, center(values))


def test_too_few_signs_reject_nothing():
    """Four signs agree by chance too often to reject any shift at 5%."""
    assert (-math.inf, math.inf) == _sign_flip_interval([0.1, 0.2, 0.3, 0.4], {4: 0.05})


def test_single_sign_flip_look_agrees_with_scipy():
    """At one look with similar sizes the sign-flip test is the randomization test of scipy."""
    values = np.array([0.9, 1.1, 1.0, 1.2, -0.95, 1.05, 0.85, 1.15, -1.02, 1.08])
    expected = stats.permutation_test(
        (values,), lambda x, axis: np.sum(x, axis=axis), permutation_type="samples"
    ).pvalue

    low_at_more = _sign_flip_interval(values, {10: expected * 1.05})[0]
    low_at_less = _sign_flip_interval(values, {10: expected * 0.95})[0]

    assert low_at_more > 0 > low_at_less


@settings(max_examples=30)
@given(
    st.lists(st.floats(-0.5, 0.5), min_size=9, max_size=12), st.floats(-1, 1), st.floats(0.1, 10)
)
def test_sign_flip_interval_moves_and_scales_with_the_values(values, shift, factor):
    """Adding a number to all values moves the interval, multiplying stretches it."""
    if np.ptp(values) < 1e-3:
        return
    spendable = {look: SPENDABLE[look] for look in range(8, len(values) + 1)}
    low, high = _sign_flip_interval(values, spendable)

    moved = _sign_flip_interval([factor * (value + shift) for value in values], spendable)

    tolerance = 1e-3 * factor * np.ptp(values)
    assert moved == pytest.approx((factor * (low + shift), factor * (high + shift)), abs=tolerance)


@given(st.lists(st.floats(-0.5, 0.5), min_size=9, max_size=12))
@settings(max_examples=30)
def test_sign_flip_interval_contains_the_center(values):
    """The Hodges-Lehmann estimate of the values is never rejected."""
    spendable = {look: SPENDABLE[look] for look in range(8, len(values) + 1)}

    low, high = _sign_flip_interval(values, spendable)

    assert low <= center(values) <= high


def _false_rejections(draw, repeats, count=12):
    rejected = 0
    for _ in range(repeats):
        values = draw(count)
        rejected += any(
            sign_flip_rejects_zero(
                values[:look], {k: v for k, v in SPENDABLE.items() if k <= look}
            )
            for look in range(8, count + 1)
        )
    return rejected / repeats


@pytest.mark.parametrize("noise", ["normal", "cauchy", "bursts", "growing"])
def test_sign_flip_level_holds_for_any_noise(noise):
    """With five looks, equal contenders are claimed to differ in at most 5% of cases."""
    random = np.random.default_rng(12)
    draws = {
        "normal": random.standard_normal,
        "cauchy": random.standard_cauchy,
        "bursts": lambda n: (
            random.standard_normal(n) + 20 * (random.random(n) < 0.15) * random.choice([-1, 1], n)
        ),
        "growing": lambda n: random.standard_normal(n) * np.arange(1, n + 1) ** 2,
    }

    # 5% of 500 and two and a half standard deviations.
    assert 0.01 <= _false_rejections(draws[noise], 500) <= 0.075


def test_one_burst_does_not_hide_a_gain_from_signs():
    """A gain seen in eleven rounds is still there when the twelfth is hit by a burst."""
    values = [0.05, 0.06, 0.04, 0.07, 0.05, 0.03, 0.06, 0.05, 0.04, 0.06, 0.05, -0.9]

    assert _sign_flip_interval(values)[0] > 0
    assert stats.ttest_1samp(values, 0).confidence_interval(0.95).low < 0


def test_more_sign_patterns_than_can_be_enumerated():
    """Beyond fifteen values a random sample of sign patterns gives a similar interval."""
    random = np.random.default_rng(3)
    values = list(random.normal(0.1, 0.05, 24))

    low, high = _sign_flip_interval(values, {20: 0.02, 24: 0.05})

    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert low == pytest.approx(expected.low, abs=0.02)
    assert high == pytest.approx(expected.high, abs=0.02)
