"""The exact group-sequential t-test against textbook values and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from autofit.statistics.sequential_t import critical_values, interval


def test_a_single_look_is_students_t():
    """With one look the critical value is the ordinary one."""
    assert critical_values((0.05,)) == pytest.approx((stats.t.ppf(0.975, 2),))


def test_nothing_left_to_spend_early_gives_the_ordinary_value_late():
    """If nearly nothing is spent before the last look, that look is an ordinary t-test."""
    spent = (*(1e-9 * (k + 1) for k in range(9)), 0.05)

    assert critical_values(spent)[-1] == pytest.approx(stats.t.ppf(0.975, 11), rel=0.005)


@pytest.mark.parametrize(
    "spent",
    [
        tuple(0.05 * k / 12 for k in range(3, 13)),
        tuple(0.05 * (k / 12) ** 3 for k in range(3, 13)),
        tuple(0.2 * k / 6 for k in range(3, 7)),
    ],
)
def test_boundaries_are_crossed_as_often_as_spent(spent):
    """On equal normal values the share of crossings so far is what was to be spent."""
    looks = np.arange(3, 3 + len(spent))
    values = np.random.default_rng(4).standard_normal((200_000, looks[-1]))
    sums, squares = np.cumsum(values, axis=1), np.cumsum(values**2, axis=1)
    means = sums[:, looks - 1] / looks
    variances = (squares[:, looks - 1] - looks * means**2) / (looks - 1)

    crossed = np.abs(means) / np.sqrt(variances / looks) > critical_values(spent)

    share = np.maximum.accumulate(crossed, axis=1).mean(axis=0)
    assert share == pytest.approx(spent, abs=0.0015)


def test_interval_is_students():
    """The interval at a critical value of t is the textbook one."""
    values = [0.1, 0.3, 0.2, 0.4]

    low, high = interval(values, stats.t.ppf(0.975, 3))

    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))
