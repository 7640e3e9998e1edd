"""The sequential sign-flip test: its level, its interval, its agreement with scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from autofit.statistics import sign_flip
from autofit.statistics.estimate import center

SPENDABLE = {8: 0.01, 9: 0.02, 10: 0.03, 11: 0.04, 12: 0.05}


def _interval(values, spendable=SPENDABLE):
    return sign_flip.interval(values, spendable, center(values))


def test_too_few_values_exclude_nothing():
    """Four signs agree by chance too often to exclude any shift at 5%."""
    assert (-math.inf, math.inf) == _interval([0.1, 0.2, 0.3, 0.4], {4: 0.05})


def test_single_look_agrees_with_scipy():
    """At one look and sizes alike the test is the randomization test of scipy."""
    values = np.array([0.9, 1.1, 1.0, 1.2, -0.95, 1.05, 0.85, 1.15, -1.02, 1.08])
    expected = stats.permutation_test(
        (values,), lambda x, axis: np.sum(x, axis=axis), permutation_type="samples"
    ).pvalue

    low_at_more = _interval(values, {10: expected * 1.05})[0]
    low_at_less = _interval(values, {10: expected * 0.95})[0]

    assert low_at_more > 0 > low_at_less


@settings(max_examples=30)
@given(
    st.lists(st.floats(-0.5, 0.5), min_size=9, max_size=12), st.floats(-1, 1), st.floats(0.1, 10)
)
def test_interval_moves_and_scales_with_the_values(values, shift, factor):
    """Adding a number to all values moves the interval, multiplying stretches it."""
    if np.ptp(values) < 1e-3:
        return
    spendable = {look: SPENDABLE[look] for look in range(8, len(values) + 1)}
    low, high = _interval(values, spendable)

    moved = _interval([factor * (value + shift) for value in values], spendable)

    tolerance = 1e-3 * factor * np.ptp(values)
    assert moved == pytest.approx((factor * (low + shift), factor * (high + shift)), abs=tolerance)


@given(st.lists(st.floats(-0.5, 0.5), min_size=9, max_size=12))
@settings(max_examples=30)
def test_interval_holds_the_center(values):
    """The centre of the values is never rejected."""
    spendable = {look: SPENDABLE[look] for look in range(8, len(values) + 1)}

    low, high = _interval(values, spendable)

    assert low <= center(values) <= high


def _false_rejections(draw, repeats, count=12):
    rejected = 0
    for _ in range(repeats):
        values = draw(count)
        rejected += any(
            sign_flip.rejects_zero(
                values[:look], {k: v for k, v in SPENDABLE.items() if k <= look}
            )
            for look in range(8, count + 1)
        )
    return rejected / repeats


@pytest.mark.parametrize("noise", ["normal", "cauchy", "bursts", "growing"])
def test_level_holds_whatever_the_noise(noise):
    """Looked at after each of five rounds, equal contenders differ in at most 5% of cases."""
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


def test_one_burst_does_not_hide_a_gain():
    """A gain seen in eleven rounds is still there when the twelfth is hit by a burst."""
    values = [0.05, 0.06, 0.04, 0.07, 0.05, 0.03, 0.06, 0.05, 0.04, 0.06, 0.05, -0.9]

    assert _interval(values)[0] > 0
    assert stats.ttest_1samp(values, 0).confidence_interval(0.95).low < 0


def test_more_values_than_can_be_enumerated():
    """Beyond fifteen values a sample of sign patterns serves."""
    random = np.random.default_rng(3)
    values = list(random.normal(0.1, 0.05, 24))

    low, high = _interval(values, {20: 0.02, 24: 0.05})

    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert low == pytest.approx(expected.low, abs=0.02)
    assert high == pytest.approx(expected.high, abs=0.02)
