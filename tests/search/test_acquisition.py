"""Acquisition: the knowledge gradient, the ranking of measured points, durations of launches."""

from __future__ import annotations

import numpy as np
import pytest

from autofit.search.acquisition import (
    knowledge_gradient,
    rank_by_expected_improvement,
    relative_durations,
)
from autofit.search.cost_model import CostPrediction
from autofit.search.problem import Observation


def test_the_knowledge_gradient_is_the_expected_decrease_of_the_minimum() -> None:
    """It agrees with a simulation of launches and of the posterior means after them."""
    mean, variance, noise = np.array([1.1, 0.9]), np.array([0.04, 0.01]), np.array([0.01, 0.01])
    covariance, picks = np.array([[0.01, 0.0], [0.005, 0.002]]), np.array([1.0, 1.2])

    found = knowledge_gradient(mean, variance, noise, covariance, picks)

    z = np.random.default_rng(1).standard_normal(400_000)[:, None]
    for index in range(2):
        scale = np.sqrt(variance[index] + noise[index])
        own = mean[index] + variance[index] / scale * z
        after = np.hstack([picks + covariance[index] / scale * z, own]).min(axis=1)
        assert found[index] == pytest.approx(picks.min() - after.mean(), abs=0.003)


def test_a_near_copy_of_the_best_point_is_ranked_last() -> None:
    """An uncertain point with a higher mean may be better than the best; a copy of it may not."""
    mean = np.array([1.0, 1.001, 1.01])
    covariance = np.array([[0.01, 0.01, 0.0], [0.01, 0.01, 0.0], [0.0, 0.0, 0.01]])

    assert rank_by_expected_improvement(mean, covariance) == [0, 2, 1]


def test_durations_follow_the_cost_after_three_launches() -> None:
    """Two launches say nothing; of three, a cost that is 10 s higher took 10 s longer."""
    zero, one = np.zeros(2), np.ones(2)
    predicted = CostPrediction(np.log([10.0, 20.0]), zero, zero, np.zeros((2, 3)), one)
    launches = [Observation({}, cost, None, 20.0 + cost) for cost in (5.0, 10.0, 30.0)]

    assert relative_durations(launches[:2], predicted) == pytest.approx([1.0, 1.0])
    assert relative_durations(launches, predicted) == pytest.approx([1.0, 40.0 / 30.0])
