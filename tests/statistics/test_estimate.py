"""Estimates of a few values: median, interval, outliers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from autofit.statistics.estimate import Estimate, center, estimate, outliers

POSITIVE = st.floats(min_value=1e-3, max_value=1e6)


@pytest.mark.parametrize("values", [[5.0], [5.0, 7.0]])
def test_no_interval_below_three_values(values):
    """One or two values have a median and no interval."""
    found = estimate(values)

    assert Estimate(sum(values) / len(values), None, None, len(values)) == found


def test_no_estimate_without_values():
    """No values give None, not zero."""
    assert estimate([]) is None


@given(st.lists(POSITIVE, min_size=3, max_size=20))
def test_interval_encloses_the_median(values):
    """The interval of three or more values contains their median, and all values count."""
    found = estimate(values)

    assert found.n == len(values)
    assert found.low <= found.median <= found.high


@given(st.lists(POSITIVE, min_size=3, max_size=5), st.floats(min_value=0.01, max_value=100))
def test_interval_scales_with_the_unit(values, factor):
    """Another unit scales the estimate and changes nothing else."""
    one, other = estimate(values), estimate([value * factor for value in values])

    assert other.median == pytest.approx(one.median * factor)
    assert other.low == pytest.approx(one.low * factor, rel=1e-6)
    assert other.high == pytest.approx(one.high * factor, rel=1e-6)


def test_three_values_have_the_t_interval_of_their_logarithms():
    """Below six values the interval is Student's t of the logarithms."""
    values = [10.0, 11.0, 12.5]

    found = estimate(values)

    logs = np.log(values)
    half = stats.t.ppf(0.975, 2) * logs.std(ddof=1) / math.sqrt(3)
    assert found.low == pytest.approx(math.exp(logs.mean() - half))
    assert found.high == pytest.approx(math.exp(logs.mean() + half))


def test_interval_of_six_values_is_their_range():
    """At six values only the extremes enclose the median often enough, 96.9%."""
    found = estimate([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])

    assert (found.low, found.median, found.high) == (1.0, 3.5, 6.0)


def test_equal_values_have_an_interval_of_zero_width():
    """Values that are equal to the last digit give an interval of zero width."""
    assert Estimate(2.0, 2.0, 2.0, 7) == estimate([2.0] * 7)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_impossible_values_are_rejected(bad):
    """A value that is not positive and finite is an error of the caller."""
    with pytest.raises(ValueError, match="positive"):
        estimate([1.0, bad, 2.0])


@pytest.mark.parametrize("n", [3, 4, 5, 6, 8, 12])
def test_interval_covers_the_true_median(n):
    """Under log-normal noise the interval contains the true median in at least 93% of cases."""
    random = np.random.default_rng(n)
    covered = 0

    for values in np.exp(random.normal(0.0, 0.1, (800, n))):
        found = estimate(values)
        covered += found.low <= 1.0 <= found.high

    assert covered / 800 >= 0.93


def test_inverse_swaps_the_limits():
    """The lower limit of the reciprocal is the reciprocal of the upper one."""
    assert Estimate(0.5, 0.25, 1.0, 4) == Estimate(2.0, 1.0, 4.0, 4).inverse()
    assert Estimate(0.5, None, None, 1) == Estimate(2.0, None, None, 1).inverse()


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_center_lies_among_the_values(values):
    """The Hodges-Lehmann estimate lies between the smallest and the largest value."""
    assert min(values) - 1e-12 <= center(values) <= max(values) + 1e-12


def test_center_is_robust_to_an_outlier():
    """One extreme value moves the center by less than the spread of the others."""
    values = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07]

    assert center([*values, 9.0]) == pytest.approx(center(values), abs=0.01)


def test_outliers_are_listed_by_index():
    """A value far from the rest is listed and still counts in the estimate."""
    values = [20.1, 20.3, 11.0, 19.9, 20.0, 20.2]

    assert outliers(values) == (2,)
    assert estimate(values).low == 11.0


def test_outlier_among_equal_values_is_listed():
    """An outlier is found although the median deviation of the values is 0."""
    assert outliers([4.0, 4.0, 4.0, 4.0, 4.0, 40.0]) == (5,)


@pytest.mark.parametrize("values", [[], [1.0, 1.0, 9.0], [3.0] * 6, [1.0, 1.1, 0.9, 1.05, 0.95]])
def test_ordinary_values_have_no_outliers(values):
    """Too few values, equal values and ordinary noise have no outliers."""
    assert outliers(values) == ()
