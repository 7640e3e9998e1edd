"""What one more launch of a point is worth: the knowledge gradient.

A launch moves the means of all points that are correlated with the one launched, by an
amount of which only the spread is known beforehand. Its worth is how much lower the lowest
mean among the points that can be picked, the new one included, is expected to be afterwards
(Frazier, Powell and Dayanik, The Knowledge-Gradient Policy for Correlated Normal Beliefs,
2009). A near copy of the best point moves with it and is worth little, a noisy launch tells
little, and a point launched before may be worth another launch.
"""

from __future__ import annotations

import numpy as np

from autofit.search.point_grid import Floats

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def knowledge_gradient(
    mean: Floats, variance: Floats, noise: Floats, covariance: Floats, picks: Floats
) -> Floats:
    """The expected fall of the lowest mean, of shape (points,).

    Args:
        mean: of the points that may be launched, of shape (points,).
        variance: of the same.
        noise: variance of the noise of one launch of each.
        covariance: of each with those that can be picked now, of shape (points, picks).
        picks: means of those that can be picked now, of shape (picks,).
    """
    scale = np.sqrt(variance + noise)
    own = variance / scale
    others = covariance / scale[:, None]
    expected = np.zeros(len(mean))
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        lowest = (picks + others * node).min(axis=1)
        expected += weight * np.minimum(lowest, mean + own * node)
    gradient: Floats = np.maximum(picks.min() - expected, 0.0)
    return gradient


def rank_by_expected_improvement(mean: Floats, covariance: Floats) -> list[int]:
    """Places in an order in which each adds most to those before it: the best one first.

    The second is the point that is most expected to turn out better than the first, and so
    on; a near copy of one before adds nothing.

    Args:
        mean: of the points, of shape (points,).
        covariance: among them, of shape (points, points).
    """
    order: list[int] = []
    left = set(range(len(mean)))
    # Rounding leaves eigenvalues a little below zero where costs are far apart; eigh bears them.
    draws = np.random.default_rng(0).multivariate_normal(
        mean, (covariance + covariance.T) / 2, size=_DRAWS, method="eigh", check_valid="ignore"
    )
    lowest = np.full(_DRAWS, np.inf)
    while left:
        if order:
            worth = {place: np.minimum(lowest, draws[:, place]).mean() for place in left}
            chosen = min(left, key=lambda place: (round(worth[place], 9), mean[place]))
        else:
            chosen = min(left, key=lambda place: mean[place])
        order.append(chosen)
        left.remove(chosen)
        lowest = np.minimum(lowest, draws[:, chosen])
    return order


_DRAWS = 512
