"""Acquisition: the value of one more launch of a point, the time it takes, and the final ranking.

The value is the knowledge gradient (Frazier, Powell and Dayanik, The Knowledge-Gradient Policy
for Correlated Normal Beliefs, 2009). A launch moves the posterior means of all points that are
correlated with it, by an amount of which only the spread is known beforehand. The knowledge
gradient is the expected decrease of the lowest mean among the points that can be picked, the
launched one included. A near copy of the best point moves with it and has little value, and so
has a noisy launch. A point that was launched before may be worth another launch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autofit.search.cost_model import CostModel, CostPrediction
from autofit.search.point_grid import Floats
from autofit.search.problem import Observation

# A point is assumed to satisfy all limits if the probability is at least this.
LIMITS_RESPECTED = 0.5
# If no point has a larger probability to satisfy the limits, they are ignored.
_MIN_LIMIT_PROBABILITY = 1e-3
# Nodes and weights of the Gauss-Hermite quadrature over a standard normal variable.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_RANKING_DRAWS = 512
# The fewest launches from which the dependence of duration on cost is estimated.
_MIN_FOR_SLOPE = 3


def expected_gains(model: CostModel, predicted: CostPrediction) -> Floats:
    """Return the expected decrease of log cost by a launch of each point, of shape (points,).

    It is the knowledge gradient times the probability of respecting the limits (Gardner et al.,
    Bayesian Optimization with Inequality Constraints, 2014). While no measured point respects
    them, that probability alone counts; if no point has a chance, the limits are ignored. While
    nothing is measured, it is the difference to the slowest point.
    """
    if not len(predicted.mean):
        return predicted.mean
    trusted = model.trusted
    probability: Floats = predicted.limit_probability
    if not trusted:
        advantage: Floats = (predicted.mean.max() - predicted.mean + 0.01) * probability
        return advantage
    measured = model.predict_measured()
    picks = [i for i in trusted if measured.limit_probability[i] >= LIMITS_RESPECTED]
    if not picks and probability.max() >= _MIN_LIMIT_PROBABILITY:
        return probability
    if not picks:
        # A limit that no setting respects does not distinguish settings.
        picks, probability = trusted, np.ones(len(probability))
    gradient = knowledge_gradient(
        predicted.mean,
        predicted.variance,
        predicted.noise_variance,
        predicted.covariance[:, picks],
        measured.mean[picks],
    )
    return gradient * probability


def knowledge_gradient(
    mean: Floats, variance: Floats, noise_variance: Floats, covariance: Floats, picks: Floats
) -> Floats:
    """Return the expected decrease of the lowest mean by one launch, of shape (points,).

    With Z standard normal and s = sqrt(variance + noise_variance), after a launch of x the mean
    of a point y is mean_y + covariance_xy / s * Z.

    Args:
        mean: of the points that may be launched, of shape (points,).
        variance: of the same.
        noise_variance: of one launch of each.
        covariance: of each with the points that can be picked now, of shape (points, picks).
        picks: means of the points that can be picked now, of shape (picks,).
    """
    scale = np.sqrt(variance + noise_variance)
    own = variance / scale
    others = covariance / scale[:, None]
    expected = np.zeros(len(mean))
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        lowest = (picks + others * node).min(axis=1)
        expected += weight * np.minimum(lowest, mean + own * node)
    gradient: Floats = np.maximum(picks.min() - expected, 0.0)
    return gradient


def rank_by_expected_improvement(mean: Floats, covariance: Floats) -> list[int]:
    """Return point indices, each point with the largest improvement over those before it.

    The first has the lowest mean. Each next one is expected to reduce the minimum of those
    before it the most, so a near copy of an earlier point comes late.

    Args:
        mean: of the points, of shape (points,).
        covariance: of the points, of shape (points, points).
    """
    order: list[int] = []
    left = set(range(len(mean)))
    # With costs of very different size, rounding gives slightly negative eigenvalues, which
    # the method eigh accepts.
    draws = np.random.default_rng(0).multivariate_normal(
        mean,
        (covariance + covariance.T) / 2,
        size=_RANKING_DRAWS,
        method="eigh",
        check_valid="ignore",
    )
    lowest = np.full(_RANKING_DRAWS, np.inf)
    while left:
        if order:
            minimum = {index: np.minimum(lowest, draws[:, index]).mean() for index in left}
            chosen = min(left, key=lambda index: (round(minimum[index], 9), mean[index]))
        else:
            chosen = min(left, key=lambda index: mean[index])
        order.append(chosen)
        left.remove(chosen)
        lowest = np.minimum(lowest, draws[:, chosen])
    return order


def relative_durations(measured: Sequence[Observation], predicted: CostPrediction) -> Floats:
    """Return the expected duration of a launch of each point relative to the usual: (points,).

    A launch takes a time for loading, which is the same for all, and for requests, which
    increases with cost. The slope comes from the launches so far; before there are three, all
    durations are 1.
    """
    pairs = [(o.cost, o.seconds) for o in measured if o.cost is not None and o.seconds > 0]
    if len(pairs) < _MIN_FOR_SLOPE:
        return np.ones(len(predicted.mean))
    costs, seconds = np.array(pairs).T
    usual = float(np.median(seconds))
    spread = float(np.var(costs))
    slope = float(np.cov(costs, seconds, bias=True)[0, 1]) / spread if spread > 0 else 0.0
    middle = float(np.median(costs))
    expected = usual + max(slope, 0.0) * (np.exp(predicted.mean) - middle)
    durations: Floats = np.clip(expected, usual / 3, usual * 10) / usual
    return durations
