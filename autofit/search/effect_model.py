"""A linear model of log cost: one effect for each value of each axis.

Costs multiply (a smaller ubatch is some per cent slower whatever the threads), so their
logarithms add up, and a Bayesian linear regression needs few launches: priors say how large
an effect of each kind usually is, so that what was not tried stays uncertain and what was
tried twice is trusted. Conjugate normal posterior with fixed variances (Gelman et al.,
Bayesian Data Analysis, chapter 14).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from autofit.search.problem import Observation, Problem
from autofit.search.space import HOST_LAYERS_AXIS, Axis, Point

Floats = NDArray[np.float64]

# Spread of a value's effect on log cost before anything is measured.
_VALUE_SD = 0.15
# Host layers slow a request in proportion; published sweeps lose 1 to 4% a layer, and some
# machines gain, so the prior leans one way and leaves room for the other.
_ALL_HOST_LAYERS_MEAN = 0.7
_ALL_HOST_LAYERS_SD = 0.6
_LEVEL_SD = 3.0
# Spread between launches of one candidate on a quiet machine (2.6% was published).
NOISE_SD = 0.03


@dataclass(frozen=True, slots=True)
class EffectModel:
    """Posterior over effects; `predict` tells mean and spread of log cost at points."""

    problem: Problem
    mean: Floats
    covariance: Floats

    def predict(self, points: Sequence[Point]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of log cost, each of shape (points,)."""
        features = feature_matrix(self.problem, points)
        mean = features @ self.mean
        variance = np.einsum("ij,jk,ik->i", features, self.covariance, features)
        return mean, np.sqrt(np.maximum(variance, 1e-12))


def fit_effects(
    problem: Problem, observations: Sequence[Observation], *, noise_sd: float = NOISE_SD
) -> EffectModel:
    """The model after the observations that have a cost; at least one must."""
    measured = [o for o in observations if o.cost is not None]
    features = feature_matrix(problem, [o.point for o in measured])
    target = np.log([o.cost for o in measured if o.cost is not None])
    prior_mean, prior_sd = _prior(problem)
    prior_mean[0] = float(np.median(target))
    precision = np.diag(prior_sd**-2) + features.T @ features / noise_sd**2
    factor = cho_factor(precision)
    mean = cho_solve(factor, prior_mean / prior_sd**2 + features.T @ target / noise_sd**2)
    return EffectModel(problem, mean, cho_solve(factor, np.eye(len(prior_mean))))


def _is_walk(axis: Axis) -> bool:
    return axis.name == HOST_LAYERS_AXIS


def feature_matrix(problem: Problem, points: Sequence[Point]) -> Floats:
    """Rows of [1, host layers as a share, one column per value of each other axis]."""
    columns = [np.ones(len(points))]
    for axis in problem.axes:
        if _is_walk(axis):
            share = [float(p[axis.name]) / max(1, problem.most_host_layers) for p in points]
            columns.append(np.array(share))
        else:
            columns.extend(
                np.array([float(p[axis.name] == value) for p in points]) for value in axis.values
            )
    return np.stack(columns, axis=1) if points else np.zeros((0, len(columns)))


def _prior(problem: Problem) -> tuple[Floats, Floats]:
    mean, sd = [0.0], [_LEVEL_SD]
    for axis in problem.axes:
        if _is_walk(axis):
            mean.append(_ALL_HOST_LAYERS_MEAN)
            sd.append(_ALL_HOST_LAYERS_SD)
        else:
            mean.extend([0.0] * len(axis.values))
            sd.extend([_VALUE_SD] * len(axis.values))
    return np.array(mean), np.array(sd)
