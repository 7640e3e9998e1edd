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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from autofit.search.cost_terms import Design, Kind
from autofit.search.point_grid import Floats

# Spreads of launches of one candidate, and of the residual, each with its prior weight.
# 2.6% between reloads was published; busy and paging machines have far more.
NOISES = ((0.008, 0.2), (0.02, 0.35), (0.05, 0.25), (0.12, 0.15), (0.3, 0.05))
RESIDUALS = ((0.01, 0.3), (0.04, 0.4), (0.15, 0.25), (0.5, 0.05))
# The share of the noise that launches one after the other have in common (a machine that
# warms up, a neighbour that comes and goes), and after how many launches it is forgotten.
DRIFTS = ((0.0, 0.6), (0.6, 0.4))
_DRIFT_LAUNCHES = 6.0
# How often a launch is disturbed, how much its logarithm may then be off, and how many
# launches it takes for one of them to be told as an outlier.
_OUTLIER_CHANCE = 0.03
_OUTLIER_SD = 0.7
_LEAST_PER_OUTLIER = 3
# What is kept of a view: components that weigh this much in it; and views that weigh this much.
_LEAST_WEIGHT = 0.05
_LEAST_VIEW_WEIGHT = 0.01
# Where the mode is sought: the usual noise and residual, so many steps, until so close.
_USUAL_NOISE, _USUAL_RESIDUAL = 0.02, 0.04
_STEPS = 12
_CLOSE = 1e-3
_LEAST_VARIANCE = 1e-10


@dataclass(frozen=True, slots=True)
class _View:
    """The unknowns on one kind of machine: their mode, and the slopes there."""

    kind: Kind
    mode: Floats
    jacobian: Floats


@dataclass(frozen=True, slots=True)
class _Component:
    """The posterior for one choice of noise, its drift and the residual.

    `whitening` is the inverse of the lower Cholesky factor of the covariance of what was
    measured; `signal` is that covariance without the noise, `known` the mean there.
    """

    weight: float
    noise: float
    residual: float
    whitening: Floats
    alpha: Floats
    signal: Floats
    known: Floats
    view: _View


@dataclass(frozen=True, slots=True)
class Prediction:
    """Logarithms of a part at some points.

    Attributes:
        mean: of shape (points,).
        variance: of the same.
        noise: variance of the noise of one launch.
        covariance: with the measured points, of shape (points, measured).
    """

    mean: Floats
    variance: Floats
    noise: Floats
    covariance: Floats


@dataclass(frozen=True, slots=True)
class Posterior:
    """A part after its measurements; `doubtful` are those taken for outliers."""

    components: tuple[_Component, ...]
    doubtful: tuple[int, ...] = ()

    @property
    def noise(self) -> float:
        """The expected spread between launches of one candidate, of logarithms."""
        return math.sqrt(sum(c.weight * c.noise**2 for c in self.components))

    @property
    def errors(self) -> Floats:
        """How far each measurement lies from what the others tell of it, of shape (measured,).

        Under the likeliest component (Rasmussen and Williams, equation 5.12).
        """
        best = max(self.components, key=lambda component: component.weight)
        errors: Floats = best.alpha / (best.whitening**2).sum(axis=0)
        return errors

    @property
    def surprise(self) -> float:
        """The root mean square of the errors in their expected sizes; 0 below two."""
        best = max(self.components, key=lambda component: component.weight)
        if len(best.alpha) < 2:  # noqa: PLR2004 - one has no others
            return 0.0
        sizes = 1 / np.sqrt((best.whitening**2).sum(axis=0))
        return float(np.sqrt(np.mean((self.errors / sizes) ** 2)))

    def predict(self, design: Design, similar: Floats) -> Prediction:
        """The part at other points.

        Args:
            design: of the points.
            similar: similarity of the points to those measured: (points, measured).
        """
        mean = np.zeros(len(similar))
        square = np.zeros(len(similar))
        covariance = np.zeros(similar.shape)
        known = np.zeros(similar.shape[1])
        by_view = itertools.groupby(self.components, key=lambda component: id(component.view))
        for _, components in by_view:
            for component, here, variance, told in _seen(design, similar, list(components)):
                covariance += component.weight * (told + np.outer(here, component.known))
                known += component.weight * component.known
                mean += component.weight * here
                square += component.weight * (here**2 + np.maximum(variance, 0.0))
        variance = np.maximum(square - mean**2, _LEAST_VARIANCE)
        covariance -= np.outer(mean, known)
        return Prediction(mean, variance, np.full(len(mean), self.noise**2), covariance)


def _seen(
    design: Design, similar: Floats, components: Sequence[_Component]
) -> Iterator[tuple[_Component, Floats, Floats, Floats]]:
    """Mean, variance and covariance with what was measured, by each component of one view."""
    view = components[0].view
    values, slopes = _linearised(design, view.mode)
    prior = values + slopes @ (view.kind.mean - view.mode)
    own = ((slopes * view.kind.sd) ** 2).sum(axis=1)
    shared = (slopes * view.kind.sd**2) @ view.jacobian.T
    for component in components:
        cross = shared + component.residual**2 * similar
        reduced = cross @ component.whitening.T
        variance = own + component.residual**2 - (reduced**2).sum(axis=1)
        told = cross - reduced @ (component.whitening @ component.signal)
        yield component, prior + cross @ component.alpha, variance, told


def fit_part(design: Design, logs: Floats, similar: Floats, order: Floats) -> Posterior:
    """The posterior of a part.

    A launch that a passing disturbance slowed would bend everything, so one whose measurement
    fits the others far better as an outlier is taken for one.

    Args:
        design: of the measured points; may have none, then the prior is returned.
        logs: logarithms of what was measured, of shape (measured,).
        similar: similarity of the measured points among themselves.
        order: which launch each was, of shape (measured,).
    """
    together = np.exp(-np.abs(order[:, None] - order[None, :]) / _DRIFT_LAUNCHES)
    data = _Data(design, logs, similar, together)
    doubtful: list[int] = []
    posterior, evidence = _fitted(data, doubtful)
    while len(doubtful) < len(logs) // _LEAST_PER_OUTLIER:
        errors = np.abs(posterior.errors)
        errors[doubtful] = 0.0
        worst = [*doubtful, int(np.argmax(errors))]
        other, other_evidence = _fitted(data, worst)
        if other_evidence + math.log(_OUTLIER_CHANCE) <= evidence:
            break
        doubtful, posterior = worst, other
        evidence = other_evidence + math.log(_OUTLIER_CHANCE)
    return posterior


@dataclass(frozen=True, slots=True)
class _Data:
    """What was measured, how alike the points are and how close in time the launches."""

    design: Design
    logs: Floats
    similar: Floats
    together: Floats

    def noise(self, sd: float, drifting: float, doubtful: Sequence[int]) -> Floats:
        """Covariance of the noise of launches, of shape (measured, measured)."""
        own = np.full(len(self.logs), sd**2 * (1 - drifting))
        own[list(doubtful)] += _OUTLIER_SD**2
        covariance: Floats = sd**2 * drifting * self.together + np.diag(own)
        return covariance


def _fitted(data: _Data, doubtful: Sequence[int]) -> tuple[Posterior, float]:
    """The posterior with some launches taken for outliers, and the log of its evidence."""
    kinds = data.design.kinds
    views = [_viewed(data, doubtful, kind) for kind in kinds]
    totals = np.array(
        [total + math.log(kind.weight) for (_, total), kind in zip(views, kinds, strict=True)]
    )
    evidence = float(logsumexp(totals))
    weights = np.exp(totals - evidence)
    weights[weights < _LEAST_VIEW_WEIGHT] = 0.0
    weights /= weights.sum()
    components = tuple(
        replace(component, weight=float(component.weight * weight))
        for (found, _), weight in zip(views, weights, strict=True)
        for component in found
        if weight
    )
    return Posterior(components, tuple(doubtful)), evidence


def _viewed(data: _Data, doubtful: Sequence[int], kind: Kind) -> tuple[list[_Component], float]:
    """The components on one kind of machine, and the log of their evidence."""
    mode, jacobian = _mode(data, doubtful, kind)
    view = _View(kind, mode, jacobian)
    values, _ = _linearised(data.design, mode)
    missed = data.logs - values - jacobian @ (kind.mean - mode)
    physics = (jacobian * kind.sd**2) @ jacobian.T
    found: list[_Component] = []
    for choice in itertools.product(NOISES, DRIFTS, RESIDUALS):
        (noise, drifting, residual), priors = zip(*choice, strict=True)
        signal = physics + residual**2 * data.similar
        factor = np.linalg.cholesky(signal + data.noise(noise, drifting, doubtful))
        whitening = np.linalg.inv(factor)
        white = whitening @ missed
        evidence = -0.5 * float(white @ white) - float(np.log(np.diag(factor)).sum())
        evidence += math.log(math.prod(priors))
        alpha = whitening.T @ white
        known = data.logs - missed + signal @ alpha
        found.append(_Component(evidence, noise, residual, whitening, alpha, signal, known, view))
    evidences = np.array([component.weight for component in found])
    total = float(logsumexp(evidences))
    weights = np.exp(evidences - total)
    # Before anything is measured all expect the same.
    least = min(_LEAST_WEIGHT, weights.max()) if len(data.logs) else weights.max()
    kept = weights >= least
    components = [
        replace(component, weight=float(weight / weights[kept].sum()))
        for component, weight, is_kept in zip(found, weights, kept, strict=True)
        if is_kept
    ]
    return components, total


def _mode(data: _Data, doubtful: Sequence[int], kind: Kind) -> tuple[Floats, Floats]:
    """Where the posterior of the unknowns has its mode, and the slopes there."""
    design = data.design
    spread = _USUAL_RESIDUAL**2 * data.similar + data.noise(_USUAL_NOISE, 0.0, doubtful)
    mode = kind.mean.copy()
    for _ in range(_STEPS):
        values, jacobian = _linearised(design, mode)
        if not len(data.logs):
            return mode, jacobian
        covariance = (jacobian * kind.sd**2) @ jacobian.T + spread
        missed = data.logs - values - jacobian @ (kind.mean - mode)
        alpha = np.linalg.solve(covariance, missed)
        target = kind.mean + kind.sd**2 * (jacobian.T @ alpha)
        step = np.clip(target - mode, -1.0, 1.0)
        mode = mode + step
        if np.abs(step).max() < _CLOSE:
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
