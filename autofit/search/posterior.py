"""The posterior of one part after its measurements: Bayesian regression on logarithms.

The model of a measured logarithm is

    y = f(unknowns) + residual + noise

f is the logarithm of the sum of cost terms (`Design`). The unknowns have a normal prior on each
type of machine. The residual is a Gaussian process that follows the data where f does not. The
noise is normal, and partly correlated between launches that follow each other.

f is linearised at the mode of the posterior of the unknowns (Gauss-Newton), with the Jacobian J
and the prior covariance P = diag(sd^2) there. Then y is a Gaussian process with the covariance

    J P J^T + residual_sd^2 K + N

(Rasmussen and Williams, Gaussian Processes for Machine Learning, section 2.7). The standard
deviations of noise and residual are unknown too. The posterior is therefore a mixture over a
grid of them and over the machine types, with weights by their evidence (marginal likelihood).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from autofit.search.cost_terms import Design, MachineType
from autofit.search.point_grid import Floats

# The grid of hyperparameters, each value with its prior weight. First the standard deviation of
# the noise between launches of one candidate: 2.6% between reloads was published; busy and
# paging machines have much more.
_NOISE_SDS = ((0.008, 0.2), (0.02, 0.35), (0.05, 0.25), (0.12, 0.15), (0.3, 0.05))
_RESIDUAL_SDS = ((0.01, 0.3), (0.04, 0.4), (0.15, 0.25), (0.5, 0.05))
# The share of the noise variance that is drift, such as a machine that warms up or another
# program that comes and goes. Its correlation decreases with the launches in between.
_DRIFT_SHARES = ((0.0, 0.6), (0.6, 0.4))
_DRIFT_LAUNCHES = 6.0
# All combinations: noise, share of drift, residual; and their usual prior probabilities.
_HYPERPARAMETERS = tuple(
    tuple(value for value, _ in choice)
    for choice in itertools.product(_NOISE_SDS, _DRIFT_SHARES, _RESIDUAL_SDS)
)
USUAL_HYPER_WEIGHTS: Floats = np.array(
    [
        math.prod(weight for _, weight in choice)
        for choice in itertools.product(_NOISE_SDS, _DRIFT_SHARES, _RESIDUAL_SDS)
    ]
)
# Outliers: prior probability of a disturbed launch, standard deviation of its disturbance, and
# the number of launches per outlier that may be called so.
_OUTLIER_PROBABILITY = 0.03
_OUTLIER_SD = 0.7
_LAUNCHES_PER_OUTLIER = 3
# Components with a smaller weight among those of their machine type, and machine types with a
# smaller weight, are dropped.
_MIN_COMPONENT_WEIGHT = 0.05
_MIN_TYPE_WEIGHT = 0.01
# The search for the mode: its hyperparameters, steps and tolerance.
_MODE_NOISE_SD, _MODE_RESIDUAL_SD = 0.02, 0.04
_MODE_STEPS = 12
_MODE_TOLERANCE = 1e-3
_MIN_VARIANCE = 1e-10


@dataclass(frozen=True, slots=True)
class _Linearization:
    """The mode of the unknowns on one type of machine, and the Jacobian of the data there."""

    machine_type: MachineType
    mode: Floats
    jacobian: Floats


@dataclass(frozen=True, slots=True)
class _Component:
    """A component of the mixture: the posterior for one choice of hyperparameters.

    Attributes:
        weight: posterior probability of the component.
        choice: index of the hyperparameters.
        noise_sd: standard deviation of the noise of one launch.
        residual_sd: standard deviation of the residual.
        whitening: inverse of the lower Cholesky factor of the covariance of the data.
        alpha: inverse covariance times the deviation of the data from the prior mean.
        signal: covariance of the data without noise.
        fitted: posterior mean at the data.
        linearization: of the machine type.
    """

    weight: float
    choice: int
    noise_sd: float
    residual_sd: float
    whitening: Floats
    alpha: Floats
    signal: Floats
    fitted: Floats
    linearization: _Linearization


@dataclass(frozen=True, slots=True)
class PartPrediction:
    """The predictive distribution of a part's logarithm at some points.

    Attributes:
        mean: of shape (points,).
        variance: without noise, of shape (points,).
        noise_variance: of one launch, of shape (points,).
        covariance: with the measured points, of shape (points, measured).
    """

    mean: Floats
    variance: Floats
    noise_variance: Floats
    covariance: Floats


@dataclass(frozen=True, slots=True)
class Posterior:
    """The mixture after the measurements; `outliers` are the indices of disturbed launches."""

    components: tuple[_Component, ...]
    outliers: tuple[int, ...] = ()

    def unknowns_of(self, machine_type: MachineType) -> MachineType | None:
        """Return the posterior of the unknowns on a type of machine, or None if it is ruled out.

        It is a machine type again, which can be the prior of another search.
        """
        own = [c for c in self.components if c.linearization.machine_type is machine_type]
        if not own:
            return None
        weight = sum(component.weight for component in own)
        mean = np.zeros(len(machine_type.mean))
        square = np.zeros((len(mean), len(mean)))
        hyper_weights = np.zeros(len(_HYPERPARAMETERS))
        for component in own:
            share = component.weight / weight
            gain = machine_type.spread(component.linearization.jacobian)
            one = machine_type.mean + gain.T @ component.alpha
            white = component.whitening @ gain
            covariance = machine_type.spread(np.eye(len(mean))) - white.T @ white
            mean += share * one
            square += share * (covariance + np.outer(one, one))
            hyper_weights[component.choice] = share
        return MachineType(
            weight,
            mean,
            machine_type.sd,
            square - np.outer(mean, mean),
            hyper_weights,
        )

    @property
    def noise_sd(self) -> float:
        """The expected standard deviation of logarithms between launches of one candidate."""
        return math.sqrt(sum(c.weight * c.noise_sd**2 for c in self.components))

    @property
    def residuals(self) -> Floats:
        """Leave-one-out residuals of the measurements, of shape (measured,).

        Each is the measurement minus its prediction by all others, in the component of the
        largest weight (Rasmussen and Williams, equation 5.12): alpha_i / [covariance^-1]_ii.
        """
        best = max(self.components, key=lambda component: component.weight)
        residuals: Floats = best.alpha / (best.whitening**2).sum(axis=0)
        return residuals

    @property
    def standardized_residual(self) -> float:
        """The root mean square of the leave-one-out residuals over their standard deviations.

        It is near 1 if the model explains the data, and 0 below two measurements.
        """
        best = max(self.components, key=lambda component: component.weight)
        if len(best.alpha) < 2:  # noqa: PLR2004 - one has no others
            return 0.0
        sds = 1 / np.sqrt((best.whitening**2).sum(axis=0))
        return float(np.sqrt(np.mean((self.residuals / sds) ** 2)))

    def predict(self, design: Design, kernel: Floats) -> PartPrediction:
        """Return the predictive distribution at other points: the moments of the mixture.

        Args:
            design: of the points.
            kernel: between the points and those measured, of shape (points, measured).
        """
        mean = np.zeros(len(kernel))
        square = np.zeros(len(kernel))
        covariance = np.zeros(kernel.shape)
        fitted = np.zeros(kernel.shape[1])
        by_type = itertools.groupby(self.components, key=lambda one: id(one.linearization))
        for _, components in by_type:
            moments = _component_moments(design, kernel, list(components))
            for one, one_mean, one_variance, one_covariance in moments:
                covariance += one.weight * (one_covariance + np.outer(one_mean, one.fitted))
                fitted += one.weight * one.fitted
                mean += one.weight * one_mean
                square += one.weight * (one_mean**2 + np.maximum(one_variance, 0.0))
        variance = np.maximum(square - mean**2, _MIN_VARIANCE)
        covariance -= np.outer(mean, fitted)
        return PartPrediction(mean, variance, np.full(len(mean), self.noise_sd**2), covariance)


def _component_moments(
    design: Design, kernel: Floats, components: Sequence[_Component]
) -> Iterator[tuple[_Component, Floats, Floats, Floats]]:
    """Yield each component of a machine type with mean, variance, and covariance with the data."""
    linearization = components[0].linearization
    prior = linearization.machine_type
    values, jacobian = _linearize(design, linearization.mode)
    prior_mean = values + jacobian @ (prior.mean - linearization.mode)
    prior_variance = prior.variances(jacobian)
    physics = prior.spread(jacobian) @ linearization.jacobian.T
    for component in components:
        cross = physics + component.residual_sd**2 * kernel
        reduced = cross @ component.whitening.T
        variance = prior_variance + component.residual_sd**2 - (reduced**2).sum(axis=1)
        covariance = cross - reduced @ (component.whitening @ component.signal)
        yield component, prior_mean + cross @ component.alpha, variance, covariance


def fit_posterior(design: Design, logs: Floats, kernel: Floats, order: Floats) -> Posterior:
    """Return the posterior of a part.

    A launch that was disturbed would distort the whole model. So measurements become outliers,
    with a much larger noise, one by one, as long as that increases the evidence by more than
    the prior odds of a disturbance.

    Args:
        design: of the measured points; without any, the prior is returned.
        logs: logarithms of the measurements, of shape (measured,).
        kernel: between the measured points.
        order: index of each launch, of shape (measured,).
    """
    drift = np.exp(-np.abs(order[:, None] - order[None, :]) / _DRIFT_LAUNCHES)
    data = _Data(design, logs, kernel, drift)
    outliers: list[int] = []
    posterior, evidence = _fit_mixture(data, outliers)
    while len(outliers) < len(logs) // _LAUNCHES_PER_OUTLIER:
        residuals = np.abs(posterior.residuals)
        residuals[outliers] = 0.0
        more = [*outliers, int(np.argmax(residuals))]
        other, other_evidence = _fit_mixture(data, more)
        if other_evidence + math.log(_OUTLIER_PROBABILITY) <= evidence:
            break
        outliers, posterior = more, other
        evidence = other_evidence + math.log(_OUTLIER_PROBABILITY)
    return posterior


@dataclass(frozen=True, slots=True)
class _Data:
    """The measurements, with the kernel of their points and the drift of their launches."""

    design: Design
    logs: Floats
    kernel: Floats
    drift: Floats

    def noise_covariance(
        self, noise_sd: float, drift_share: float, outliers: Sequence[int]
    ) -> Floats:
        """Return the covariance of the noise of launches, of shape (measured, measured)."""
        independent = np.full(len(self.logs), noise_sd**2 * (1 - drift_share))
        independent[list(outliers)] += _OUTLIER_SD**2
        covariance: Floats = noise_sd**2 * drift_share * self.drift + np.diag(independent)
        return covariance


def _fit_mixture(data: _Data, outliers: Sequence[int]) -> tuple[Posterior, float]:
    """Return the posterior given some outliers, and the logarithm of its evidence."""
    types = data.design.machine_types
    fits = [_fit_machine_type(data, outliers, machine_type) for machine_type in types]
    totals = np.array(
        [evidence + math.log(one.weight) for (_, evidence), one in zip(fits, types, strict=True)]
    )
    evidence = float(logsumexp(totals))
    weights = np.exp(totals - evidence)
    weights[weights < _MIN_TYPE_WEIGHT] = 0.0
    weights /= weights.sum()
    components = tuple(
        replace(component, weight=float(component.weight * weight))
        for (found, _), weight in zip(fits, weights, strict=True)
        for component in found
        if weight
    )
    return Posterior(components, tuple(outliers)), evidence


def _fit_machine_type(
    data: _Data, outliers: Sequence[int], machine_type: MachineType
) -> tuple[list[_Component], float]:
    """Return the components on one type of machine, and the logarithm of their evidence."""
    mode, jacobian = _find_mode(data, outliers, machine_type)
    linearization = _Linearization(machine_type, mode, jacobian)
    values, _ = _linearize(data.design, mode)
    deviation = data.logs - values - jacobian @ (machine_type.mean - mode)
    physics = machine_type.spread(jacobian) @ jacobian.T
    found: list[_Component] = []
    log_evidences: list[float] = []
    priors = machine_type.hyper_weights
    priors = USUAL_HYPER_WEIGHTS if priors is None else priors
    for choice, (noise_sd, drift_share, residual_sd) in enumerate(_HYPERPARAMETERS):
        signal = physics + residual_sd**2 * data.kernel
        noise = data.noise_covariance(noise_sd, drift_share, outliers)
        factor = np.linalg.cholesky(signal + noise)
        whitening = np.linalg.inv(factor)
        white = whitening @ deviation
        log_evidence = -0.5 * float(white @ white) - float(np.log(np.diag(factor)).sum())
        log_evidences.append(log_evidence + math.log(priors[choice]))
        alpha = whitening.T @ white
        fitted = data.logs - deviation + signal @ alpha
        found.append(
            _Component(
                weight=1.0,
                choice=choice,
                noise_sd=noise_sd,
                residual_sd=residual_sd,
                whitening=whitening,
                alpha=alpha,
                signal=signal,
                fitted=fitted,
                linearization=linearization,
            )
        )
    total = float(logsumexp(log_evidences))
    weights = np.exp(np.array(log_evidences) - total)
    # Without data all components predict the same, and those of the largest weight are enough.
    least = min(_MIN_COMPONENT_WEIGHT, weights.max()) if len(data.logs) else weights.max()
    is_kept = weights >= least
    components = [
        replace(component, weight=float(weight / weights[is_kept].sum()))
        for component, weight, keep in zip(found, weights, is_kept, strict=True)
        if keep
    ]
    return components, total


def _find_mode(
    data: _Data, outliers: Sequence[int], machine_type: MachineType
) -> tuple[Floats, Floats]:
    """Return the mode of the posterior of the unknowns, and the Jacobian there (Gauss-Newton)."""
    design = data.design
    noise = data.noise_covariance(_MODE_NOISE_SD, 0.0, outliers)
    spread = _MODE_RESIDUAL_SD**2 * data.kernel + noise
    mode = machine_type.mean.copy()
    for _ in range(_MODE_STEPS):
        values, jacobian = _linearize(design, mode)
        if not len(data.logs):
            return mode, jacobian
        covariance = machine_type.spread(jacobian) @ jacobian.T + spread
        deviation = data.logs - values - jacobian @ (machine_type.mean - mode)
        alpha = np.linalg.solve(covariance, deviation)
        target = machine_type.mean + machine_type.spread(jacobian.T @ alpha)
        step = np.clip(target - mode, -1.0, 1.0)
        mode = mode + step
        if np.abs(step).max() < _MODE_TOLERANCE:
            break
    return mode, _linearize(design, mode)[1]


def _linearize(design: Design, unknowns: Floats) -> tuple[Floats, Floats]:
    """Return a part's logarithm and its Jacobian: of shape (points,) and (points, unknowns)."""
    terms = design.offsets.shape[1]
    base, effects = unknowns[:terms], unknowns[terms:]
    logs = base + design.offsets + (design.columns * effects) @ design.touches
    highest = logs.max(axis=1, keepdims=True)
    shares = np.exp(logs - highest)
    total = shares.sum(axis=1, keepdims=True)
    shares /= total
    jacobian = np.concatenate([shares, design.columns * (shares @ design.touches.T)], axis=1)
    return (highest + np.log(total))[:, 0], jacobian
