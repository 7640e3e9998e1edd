"""Changes between nights: their size, error and p-values."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from autofit.statistics.night_change import (
    Change,
    NightValue,
    change_in_pairs,
    change_of_night,
    hochberg,
    is_unsteady,
    night_value,
)

values = st.lists(st.floats(0.01, 1000), min_size=1, max_size=20)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def test_few_launches_give_the_mean_and_deviation_of_logarithms():
    """Below seven launches nothing is trimmed."""
    value = night_value([1.0, 2.0, 4.0])

    assert value.typical == pytest.approx(2.0)
    assert value.sd == pytest.approx(math.log(2))
    assert (value.n, value.freedom) == (3, 2)


def test_the_trimmed_mean_agrees_with_scipy():
    """From seven launches on one is trimmed on either side, with Yuen's variance."""
    data = np.array([9.0, 1.0, 2.0, 3.0, 5.0, 7.0, 4.0, 50.0])
    other = np.array([3.0, 8.0, 1.0, 4.0, 6.0, 2.0, 9.0, 30.0])
    ours, theirs = night_value(data), night_value(other)
    yuen = stats.ttest_ind(np.log(data), np.log(other), equal_var=False, trim=1 / 8)

    error = math.sqrt(ours.variance / ours.n + theirs.variance / theirs.n)

    assert ours.typical == pytest.approx(math.exp(stats.trim_mean(np.log(data), 1 / 8)))
    assert math.log(ours.typical / theirs.typical) / error == pytest.approx(yuen.statistic)
    assert ours.freedom == 5


def test_a_burst_hardly_changes_the_value_of_a_night():
    """One launch of eight that takes ten times as long moves the value by less than 1%."""
    calm = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99]

    assert night_value([*calm[:-1], 10.0]).typical == pytest.approx(
        night_value(calm).typical, rel=0.01
    )


def test_one_launch_has_a_value_and_no_deviation():
    """One launch has no deviation, and no launches have no value."""
    assert night_value([3.0]) == NightValue(pytest.approx(3.0), None, 1)
    assert night_value([]) is None


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_values_that_are_not_positive_are_rejected(bad):
    """A rate of zero is an error of the caller."""
    with pytest.raises(ValueError, match="positive"):
        night_value([1.0, bad])


@given(values, st.floats(0.1, 10))
def test_a_night_scales_with_its_launches(launches, factor):
    """A factor on all launches scales the value and keeps the relative deviation."""
    one, other = night_value(launches), night_value([factor * value for value in launches])

    assert other.typical == pytest.approx(factor * one.typical)
    assert (one.sd is None) == (other.sd is None)
    if one.sd is not None:
        assert other.sd == pytest.approx(one.sd, abs=1e-9)


def test_with_a_single_kept_night_the_error_is_the_priors():
    """Without noise of launches the error is that of the difference of two nights."""
    still = NightValue(10.0, 0.0, 8)

    change = change_of_night([[still]], NightValue(11.0, 0.0, 8), 0.01)

    assert change.log_ratio == pytest.approx(math.log(1.1))
    assert change.error == pytest.approx(0.01 * math.sqrt(2))
    assert change.freedom == 4


def test_equal_nights_reduce_the_error():
    """Ten nights outweigh the prior, whether they are equal or 5% apart."""
    now = NightValue(11.0, 0.001, 8)
    calm = [NightValue(10.0, 0.001, 8)] * 10
    apart = [NightValue(10.0 * 1.05 ** (-1) ** i, 0.001, 8) for i in range(10)]

    first = change_of_night([calm[:1]], now, 0.01)
    after_ten = change_of_night([calm], now, 0.01)
    restless = change_of_night([apart], now, 0.01)

    assert after_ten.error < first.error / 2
    assert after_ten.freedom > first.freedom
    assert restless.error > 3 * first.error


def test_earlier_levels_count_for_the_variance_between_nights():
    """Nights around another value change the error and not the ratio."""
    old = [NightValue(20.0 * 1.03 ** (-1) ** i, 0.001, 8) for i in range(8)]
    level = [NightValue(10.0, 0.001, 8)]
    now = NightValue(10.5, 0.001, 8)

    alone = change_of_night([level], now, 0.005)
    with_old = change_of_night([old, level], now, 0.005)

    assert with_old.log_ratio == pytest.approx(alone.log_ratio)
    assert with_old.error > 2 * alone.error


def test_levels_that_change_every_night_are_variance_between_nights():
    """A machine whose level changes every night has a large error, one that changed once not."""
    levels = [[NightValue(10.0 * 1.1 ** (-1) ** i, 0.01, 8)] for i in range(6)]
    moved_once = [[NightValue(10.0, 0.01, 8)] * 5, [NightValue(11.0, 0.01, 8)]]
    now = NightValue(10.0, 0.01, 8)

    every_night = change_of_night(levels, now, 0.005, [0.19, -0.19] * 3)
    once = change_of_night(moved_once, now, 0.005, [0.0, 0.0, 0.0, 0.0, 0.1])

    assert every_night.error > 0.08
    assert once.error < 0.02


def test_the_noise_of_launches_is_pooled_over_nights():
    """Two launches tonight use the variance of the kept ones; far noisier ones use their own."""
    nights = [NightValue(10.0, 0.03, 16)] * 3
    few = change_of_night([nights], NightValue(10.6, 0.0001, 2), 0.005)
    wild = NightValue(10.6, 0.3, 8)

    assert few.error > 0.02
    assert few.freedom > 20
    assert is_unsteady(nights, wild)
    assert change_of_night([nights], wild, 0.005).error > 0.1
    assert not is_unsteady(nights, NightValue(10.6, 0.035, 8))
    assert not is_unsteady([NightValue(10.0, None, 1)], wild)


def test_without_two_launches_in_any_night_there_is_no_change():
    """Single launches have no known variance."""
    one = NightValue(10.0, None, 1)

    assert change_of_night([[one]], NightValue(11.0, None, 1), 0.01) is None
    assert change_of_night([[NightValue(10.0, 0.02, 3)]], one, 0.01) is not None


def test_without_variance_between_nights_it_is_a_t_test():
    """With one kept night and no variance between nights the test is Student's."""
    rng = np.random.default_rng(4)
    before, after = (np.exp(rng.normal(0, 0.03, 6)) for _ in range(2))
    change = change_of_night([[night_value(before)]], night_value(after), 0.0)

    expected = stats.ttest_ind(np.log(after), np.log(before))

    assert change.log_ratio / change.error == pytest.approx(expected.statistic)
    assert 2 * min(change.p_value_below(), change.p_value_above()) == pytest.approx(
        expected.pvalue
    )
    assert np.log(change.interval()) == pytest.approx(expected.confidence_interval())


def test_an_interval_beyond_the_largest_float_has_finite_limits():
    """An enormous error gives limits of 0 and a finite number."""
    low, high = Change(log_ratio=2.0, error=100.0, freedom=1.0).interval()

    assert low == 0
    assert math.isfinite(high)
    assert high > 1e300


def test_correlated_pairs_are_a_paired_t_test():
    """Under shared noise the differences count; below three pairs there is no change."""
    shared = np.random.default_rng(3).normal(0, 0.3, 6)
    own = np.array([0.05, 0.07, 0.02, 0.06, 0.05, 0.04])
    change = change_in_pairs(np.exp(shared), np.exp(shared + own))
    expected = stats.ttest_1samp(own, 0.0)

    assert change.log_ratio / change.error == pytest.approx(expected.statistic)
    assert 2 * change.p_value_above() == pytest.approx(expected.pvalue)
    assert change.inverse().p_value_below() == pytest.approx(change.p_value_above())
    assert change_in_pairs([1.0, 1.0], [1.1, 1.2]) is None


def test_uncorrelated_pairs_are_two_samples():
    """Under independent noise the test is that of two samples."""
    rng = np.random.default_rng(5)
    before, now = np.exp(rng.normal(0, 0.03, (2, 6)))
    change = change_in_pairs(before, now)
    expected = stats.ttest_ind(np.log(now), np.log(before))

    assert change.log_ratio / change.error == pytest.approx(expected.statistic)
    assert 2 * min(change.p_value_below(), change.p_value_above()) == pytest.approx(
        expected.pvalue
    )


def test_equal_pairs_are_no_change():
    """Pairs without any noise give a ratio of exactly 1."""
    change = change_in_pairs([3.0] * 5, [3.0] * 5)

    assert change.p_value_below() == pytest.approx(0.5)
    assert change.interval() == pytest.approx((1.0, 1.0))


def test_pairs_have_the_nominal_error_rate():
    """Of 1500 nights without a change about 5% are claimed, with shared noise and without."""
    rng = np.random.default_rng(12)
    for shared in (0.0, 0.05):
        claims = 0
        for _ in range(1500):
            state = rng.normal(0, shared, 8) if shared else np.zeros(8)
            before, now = np.exp(state + rng.normal(0, 0.03, (2, 8)))
            change = change_in_pairs(before, now)
            claims += 2 * min(change.p_value_below(), change.p_value_above()) < 0.05
        assert claims / 1500 < 0.075


def test_a_disturbed_night_does_not_hide_later_changes():
    """One disturbed night of five leaves the error of a change as it is."""
    calm = [NightValue(10.0, 0.01, 8)] * 4
    wild = NightValue(10.0, 0.3, 8)

    alone = change_of_night([calm], NightValue(10.6, 0.01, 8), 0.005)
    with_wild = change_of_night([[*calm, wild]], NightValue(10.6, 0.01, 8), 0.005)

    assert with_wild.error == pytest.approx(alone.error, rel=0.2)


@given(p_values)
def test_an_adjusted_p_value_lies_between_its_own_and_holms(family):
    """The adjustment never lowers a p-value, keeps the order, and never exceeds Holm's."""
    adjusted = hochberg(family)
    order = sorted(range(len(family)), key=family.__getitem__)
    holm, running = [0.0] * len(family), 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(family) - rank) * family[index]))
        holm[index] = running

    for own, ours, theirs in zip(family, adjusted, holm, strict=True):
        assert own <= ours <= theirs + 1e-12
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_the_adjustment_is_hochbergs():
    """Worked by hand: 4 x 0.01, 3 x 0.02, 2 x 0.03, 0.04."""
    assert hochberg([0.01, 0.04, 0.03, 0.02]) == pytest.approx([0.04, 0.04, 0.04, 0.04])
    assert hochberg([0.001, 0.5, 0.6, 0.7]) == pytest.approx([0.004, 0.7, 0.7, 0.7])
    assert hochberg([0.01, 0.5]) == pytest.approx([0.02, 0.5])
    assert hochberg([]) == []


def test_nights_have_the_nominal_error_rate():
    """Of 1500 nights without a change about 5% are claimed, and more by independent launches."""
    rng = np.random.default_rng(11)
    claims = naive = 0
    for _ in range(1500):
        states = rng.normal(0, 0.01, 6)
        nights = [night_value(np.exp(s + rng.normal(0, 0.03, 8))) for s in states]
        change = change_of_night([nights[:-1]], nights[-1], 0.0075)
        claims += 2 * min(change.p_value_below(), change.p_value_above()) < 0.05
        pooled = math.hypot(0.03 / math.sqrt(8), 0.03 / math.sqrt(40))
        naive += abs(change.log_ratio) / pooled > NormalDist().inv_cdf(0.975)

    assert claims / 1500 < 0.075
    assert naive / 1500 > 0.1
