"""What measurements tell of one part: a Bayesian regression of logarithms with a residual.

The part's logarithm is nonlinear in its coefficients, so it is linearised where the
posterior has its mode (Gauss-Newton); there it is a Gaussian process whose kernel is that of
the linearised physics plus a residual that follows the data where the physics does not
(Rasmussen and Williams, Gaussian Processes for Machine Learning, section 2.7). How large the
residual and the noise are is not known: several pairs are kept, weighted by their evidence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofit.search.grid import Floats
from autofit.search.part import Design

# Spreads of launches of one candidate, and of the residual, each with its prior weight.
# 2.6% between reloads was published; busy and paging machines have far more.
NOISES = ((0.008, 0.2), (0.02, 0.35), (0.05, 0.25), (0.12, 0.15), (0.3, 0.05))
RESIDUALS = ((0.01, 0.3), (0.04, 0.4), (0.15, 0.25), (0.5, 0.05))
_LEAST_WEIGHT = 0.05
_STEPS = 12


@dataclass(frozen=True, slots=True)
class _Component:
    """The posterior for one pair of noise and residual.

    `whitening` is the inverse of the lower Cholesky factor of the covariance.
    """

    weight: float
    noise: float
    residual: float
    whitening: Floats
    alpha: Floats


@dataclass(frozen=True, slots=True)
class Prediction:
    """Mean and variance of logarithms, each of shape (points,)."""

    mean: Floats
    variance: Floats


@dataclass(frozen=True, slots=True)
class Posterior:
    """A part after its measurements; `noise` is the expected spread between launches."""

    mode: Floats
    jacobian: Floats
    components: tuple[_Component, ...]
    noise: float
    surprise: float

    def predict(self, design: Design, similar: Floats) -> Prediction:
        """The part at other points.

        Args:
            design: of the points.
            similar: similarity of the points to those measured: (points, measured).
        """
        values, slopes = _linearised(design, self.mode)
        prior = values + slopes @ (design.mean - self.mode)
        own = ((slopes * design.sd) ** 2).sum(axis=1)
        shared = (slopes * design.sd**2) @ self.jacobian.T
        mean = np.zeros(len(values))
        square = np.zeros(len(values))
        for component in self.components:
            cross = shared + component.residual**2 * similar
            here = prior + cross @ component.alpha
            reduced = cross @ component.whitening.T
            variance = own + component.residual**2 - (reduced**2).sum(axis=1)
            mean += component.weight * here
            square += component.weight * (here**2 + np.maximum(variance, 0.0))
        return Prediction(mean, np.maximum(square - mean**2, 1e-10))


def fit_part(design: Design, logs: Floats, similar: Floats) -> Posterior:
    """The posterior of a part.

    Args:
        design: of the measured points; may have none, then the prior is returned.
        logs: logarithms of what was measured, of shape (measured,).
        similar: similarity of the measured points among themselves.
    """
    mode, jacobian = _mode(design, logs, similar)
    values, _ = _linearised(design, mode)
    missed = logs - values - jacobian @ (design.mean - mode)
    physics = (jacobian * design.sd**2) @ jacobian.T
    found: list[tuple[float, float, float, Floats, Floats]] = []
    for (noise, noise_weight), (residual, residual_weight) in itertools.product(NOISES, RESIDUALS):
        covariance = physics + residual**2 * similar + noise**2 * np.eye(len(logs))
        factor = np.linalg.cholesky(covariance)
        whitening = np.linalg.inv(factor)
        white = whitening @ missed
        evidence = -0.5 * float(white @ white) - float(np.log(np.diag(factor)).sum())
        evidence += math.log(noise_weight * residual_weight)
        found.append((evidence, noise, residual, whitening, whitening.T @ white))
    best = max(entry[0] for entry in found)
    weights = np.exp([entry[0] - best for entry in found])
    weights /= weights.sum()
    kept = weights >= min(_LEAST_WEIGHT, weights.max())
    components = tuple(
        _Component(float(weight / weights[kept].sum()), *entry[1:])
        for weight, entry, is_kept in zip(weights, found, kept, strict=True)
        if is_kept
    )
    noise = math.exp(sum(c.weight * math.log(c.noise) for c in components))
    return Posterior(mode, jacobian, components, noise, _surprise(components))


def _mode(design: Design, logs: Floats, similar: Floats) -> tuple[Floats, Floats]:
    """Where the posterior of the unknowns has its mode, and the slopes there."""
    noise, residual = 0.02, 0.04
    spread = residual**2 * similar + noise**2 * np.eye(len(logs))
    mode = design.mean.copy()
    for _ in range(_STEPS):
        values, jacobian = _linearised(design, mode)
        if not len(logs):
            return mode, jacobian
        covariance = (jacobian * design.sd**2) @ jacobian.T + spread
        missed = logs - values - jacobian @ (design.mean - mode)
        alpha = np.linalg.solve(covariance, missed)
        target = design.mean + design.sd**2 * (jacobian.T @ alpha)
        step = np.clip(target - mode, -1.0, 1.0)
        mode = mode + step
        if np.abs(step).max() < 1e-3:  # noqa: PLR2004
            break
    return mode, _linearised(design, mode)[1]


def _linearised(design: Design, unknowns: Floats) -> tuple[Floats, Floats]:
    """The part's logarithm at some unknowns, and its slopes: (points,), (points, unknowns)."""
    terms = design.offsets.shape[1]
    base, effects = unknowns[:terms], unknowns[terms:]
    logs = base + design.offsets + (design.columns * effects) @ design.touches
    highest = logs.max(axis=1, keepdims=True)
    shares = np.exp(logs - highest)
    total = shares.sum(axis=1, keepdims=True)
    shares /= total
    slopes = np.concatenate([shares, design.columns * (shares @ design.touches.T)], axis=1)
    return (highest + np.log(total))[:, 0], slopes


def _surprise(components: Sequence[_Component]) -> float:
    """How far measurements lie from what the others tell of them, in standard deviations.

    The root mean square of the errors when each is left out in turn (Rasmussen and Williams,
    equation 5.12), under the likeliest component; 0 with fewer than two.
    """
    best = max(components, key=lambda component: component.weight)
    if len(best.alpha) < 2:  # noqa: PLR2004
        return 0.0
    precision = (best.whitening**2).sum(axis=0)
    errors = best.alpha / np.sqrt(precision)
    return float(np.sqrt(np.mean(errors**2)))
