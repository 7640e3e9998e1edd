"""The probability that points fit: predicted margins, corrected by the outcomes of launches.

A memory prediction has an error that most candidates of a machine share (driver contexts,
pools). The posterior of this bias is learned from every launch that fitted or was out of
memory. Without predictions, the posterior of a linear boundary in host layers and the other
settings that need memory is learned instead.

`memory.calibration` corrects the predicted bytes by the bytes that launches used. Here only the
outcome of a launch counts, which is known also without memory counters.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

from autofit.memory.demand import Memory, demand
from autofit.search.point_grid import Floats, PointGrid, Rows
from autofit.search.problem import Fit
from autofit.search.space import HOST_LAYERS_AXIS

# Standard deviation of the error of a prediction: the larger of a share of the needed memory and a
# number of MiB. Predictions do not cover pools that grow at run time: a server with 66 MiB left
# died at its first long prompt, one with 40 MiB left did not. Predictions of host memory are less
# accurate.
_SD_SHARE: dict[Memory, float] = {"device": 0.01, "host": 0.03}
_MIN_SD_MIB: dict[Memory, float] = {"device": 48.0, "host": 256.0}
# The part of the error that the candidates of a machine do not share, in units of that deviation.
_OWN_SD = 0.5
# The grid of the shared bias, in the same unit. Its prior is a mixture of two normal
# distributions: on one machine in eight the bias is large.
_BIASES = np.concatenate(
    [np.linspace(-40, -5, 36), np.linspace(-4.8, 4.8, 97), np.linspace(5, 40, 36)]
)
_LARGE_BIAS_SHARE, _LARGE_BIAS_SD = 0.125, 12.0
# The standard deviation of the difference of the biases of two models, in the same unit, and the
# probability that the bias of earlier studies says nothing.
_OTHER_MODEL_SD = 1.5
_CHANGED_SHARE = 0.1
_PRIOR = (
    (1 - _LARGE_BIAS_SHARE) * np.exp(-0.5 * _BIASES**2)
    + _LARGE_BIAS_SHARE * (np.exp(-0.5 * (_BIASES / _LARGE_BIAS_SD) ** 2) / _LARGE_BIAS_SD)
) * np.gradient(_BIASES)
# Margins at which probabilities are computed, in the same unit; between them they are
# interpolated.
_MARGINS = np.linspace(-45.0, 45.0, 361)
# Any launch may fail for a passing reason, so no outcome is less likely than this.
_MIN_LIKELIHOOD = 1e-4

# The boundary without predictions: the number of particles, the share of particles on which
# every point fits, the deviation of the boundary, and the smallest log likelihood of an outcome.
_PARTICLES = 400
_ALL_FIT_SHARE = 0.35
_BOUNDARY_SD = 0.03
_MIN_LOG_LIKELIHOOD = -9.0


def fit_probability(fit: Fit | None) -> float:
    """Return the probability that a candidate fits from its prediction, or 0.5 if it has none."""
    if fit is None:
        return 0.5
    probability = ndtr(fit.margin_mib / _sd_mib(fit.needed_mib, "device"))
    if not math.isnan(fit.host_margin_mib):
        probability *= ndtr(fit.host_margin_mib / _sd_mib(fit.host_needed_mib, "host"))
    return float(probability)


def _sd_mib(needed_mib: float, memory: Memory) -> float:
    return max(_MIN_SD_MIB[memory], _SD_SHARE[memory] * needed_mib)


class EstimateBiasPosterior:
    """The posterior of the bias that the predictions of one memory share.

    A point with the predicted margin m fits with the probability Phi((m - bias) / own_sd).
    `needed_mib` is the most that any prediction needs.
    """

    def __init__(self, memory: Memory, needed_mib: float) -> None:
        self._unit_mib = _sd_mib(needed_mib, memory)
        self._log_weights = np.log(_PRIOR)

    def add_outcome(self, margin_mib: float, *, fitted: bool) -> None:
        """Add a launch with that predicted margin."""
        z = (margin_mib / self._unit_mib - _BIASES) / _OWN_SD
        likelihood = np.clip(ndtr(z if fitted else -z), _MIN_LIKELIHOOD, 1.0)
        self._log_weights += np.log(likelihood)

    def as_prior(self) -> None:
        """Take what is known of another model as the prior of this one.

        Their biases differ a little, and with some probability they have nothing in common.
        """
        weights = np.exp(self._log_weights - self._log_weights.max())
        steps = (_BIASES[:, None] - _BIASES[None, :]) / _OTHER_MODEL_SD
        blurred = np.exp(-0.5 * steps**2) @ weights * np.gradient(_BIASES)
        prior = _PRIOR / _PRIOR.sum()
        mixed = (1 - _CHANGED_SHARE) * blurred / blurred.sum() + _CHANGED_SHARE * prior
        self._log_weights = np.log(mixed)

    def probability(self, margins_mib: Floats) -> Floats:
        """Return the probability that points with such predicted margins fit, of equal shape."""
        weights = np.exp(self._log_weights - self._log_weights.max())
        weights /= weights.sum()
        at_margins = ndtr((_MARGINS[:, None] - _BIASES) / _OWN_SD) @ weights
        probability: Floats = np.interp(margins_mib / self._unit_mib, _MARGINS, at_margins)
        return probability


class BoundaryPosterior:
    """The posterior of the fit boundary if there are no predictions, as a set of particles.

    A point fits if its share of host layers exceeds a threshold. The values of other settings
    move the threshold: upwards for a larger demand of device memory, and by a random amount for
    a setting of unknown direction.
    """

    def __init__(self, grid: PointGrid, *, seed: int = 0) -> None:
        self._grid = grid
        rng = np.random.default_rng(seed)
        self._moves: list[tuple[int, Floats]] = []
        threshold = rng.uniform(-0.1, 1.0, _PARTICLES)
        threshold[rng.random(_PARTICLES) < _ALL_FIT_SHARE] = -10.0
        self._threshold = threshold
        self._layers: tuple[int, Floats] | None = None
        for column, axis in enumerate(grid.axes):
            demands = np.array([demand(axis.name, value) for value in axis.values])
            if axis.name == HOST_LAYERS_AXIS:
                self._layers = (column, _rescale(-demands))
            elif not np.isnan(demands).any():
                slopes = np.abs(rng.normal(0.0, 0.2, _PARTICLES))
                self._moves.append((column, np.outer(_rescale(demands), slopes)))
            else:
                moves = rng.normal(0.0, 0.05, (len(axis.values), _PARTICLES))
                self._moves.append((column, moves))
        self._log_weights = np.zeros(_PARTICLES)

    def add_outcome(self, row: Rows, *, fitted: bool) -> None:
        """Add a launch of a row."""
        z = self._margins(row[None, :])[0] / _BOUNDARY_SD
        self._log_weights += np.maximum(log_ndtr(z if fitted else -z), _MIN_LOG_LIKELIHOOD)

    def probability(self, rows: Rows) -> Floats:
        """Return the probability that rows fit, of shape (rows,)."""
        weights = np.exp(self._log_weights - self._log_weights.max())
        probability: Floats = ndtr(self._margins(rows) / _BOUNDARY_SD) @ (weights / weights.sum())
        return probability

    def _margins(self, rows: Rows) -> Floats:
        """Return the distances of rows from the thresholds, of shape (rows, particles)."""
        layers = np.full(len(rows), 0.9)
        if self._layers is not None:
            column, share = self._layers
            layers = np.nan_to_num(share[rows[:, column]], nan=0.5)
        margins: Floats = layers[:, None] - self._threshold
        for column, moves in self._moves:
            margins = margins - moves[rows[:, column]]
        return margins


def _rescale(values: Floats) -> Floats:
    """Return values scaled to 0..1; a constant becomes 0."""
    low, high = np.nanmin(values), np.nanmax(values)
    return np.zeros_like(values) if high == low else (values - low) / (high - low)
