"""How likely points are to fit: the estimate's margins, corrected by what launches showed.

The estimate is wrong by some MiB that most candidates of a machine share (driver contexts,
pools), so the shift is learned: every launch that fitted or failed tells something of it.
Where there is no estimate, a line in host layers and what pulls on memory beside them stands
in, of which the launches tell the place.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

from autofit.memory.demand import Memory, demand
from autofit.search.point_grid import Floats, Grid, Rows
from autofit.search.problem import Fit
from autofit.search.space import HOST_LAYERS_AXIS

# The runtime's estimator is right within some MiB, but not about pools that grow at run
# time: a server with 66 MiB left died at its first long prompt, one with 40 lived. What the
# system leaves of its own memory is known less well.
_SD_SHARE: dict[Memory, float] = {"device": 0.01, "host": 0.03}
_SD_FLOOR_MIB: dict[Memory, float] = {"device": 48.0, "host": 256.0}
# What candidates of one machine do not share of the estimate's error, as a share of it.
_OWN_SHARE = 0.5
# How far the shift of a whole machine may lie from 0, in standard deviations; one machine
# in eight is far off.
_SHIFTS = np.concatenate(
    [np.linspace(-40, -5, 36), np.linspace(-4.8, 4.8, 97), np.linspace(5, 40, 36)]
)
_FAR_SHARE, _FAR_SD = 0.125, 12.0
# Margins at which chances are computed, in the same unit; between them they are told.
_MARGINS = np.linspace(-45.0, 45.0, 361)

# Without an estimate: particles of a threshold in host layers.
_PARTICLES = 400
_NOTHING_FAILS_SHARE = 0.35


def fit_probability(fit: Fit | None) -> float:
    """The chance that a candidate fits by its estimate alone; 0.5 where nothing is known."""
    if fit is None:
        return 0.5
    chance = ndtr(fit.margin_mib / _sd_mib(fit.needed_mib, "device"))
    if not math.isnan(fit.host_margin_mib):
        chance *= ndtr(fit.host_margin_mib / _sd_mib(fit.host_needed_mib, "host"))
    return float(chance)


def _sd_mib(needed_mib: float, memory: Memory) -> float:
    return max(_SD_FLOOR_MIB[memory], _SD_SHARE[memory] * needed_mib)


class EstimateBiasPosterior:
    """The belief about how far the estimates of a memory are off.

    `needed_mib` is the most that any estimate needed.
    """

    def __init__(self, memory: Memory, needed_mib: float) -> None:
        self._unit_mib = _sd_mib(needed_mib, memory)
        near = np.exp(-0.5 * _SHIFTS**2)
        far = np.exp(-0.5 * (_SHIFTS / _FAR_SD) ** 2) / _FAR_SD
        widths = np.gradient(_SHIFTS)
        self._log_weights = np.log(((1 - _FAR_SHARE) * near + _FAR_SHARE * far) * widths)

    def add_outcome(self, margin_mib: float, *, fitted: bool) -> None:
        """A launch with that estimated margin did or did not fit."""
        z = (margin_mib / self._unit_mib - _SHIFTS) / _OWN_SHARE
        # Any launch may fail for a passing reason: certainty is never complete.
        chance = np.clip(ndtr(z if fitted else -z), 1e-4, 1.0)
        self._log_weights += np.log(chance)

    def probability(self, margins_mib: Floats) -> Floats:
        """The chance that points of such estimated margins fit, of the same shape."""
        weights = np.exp(self._log_weights - self._log_weights.max())
        weights /= weights.sum()
        chances = ndtr((_MARGINS[:, None] - _SHIFTS) / _OWN_SHARE) @ weights
        found: Floats = np.interp(margins_mib / self._unit_mib, _MARGINS, chances)
        return found


class BoundaryPosterior:
    """The belief about which points fit where nothing estimates it.

    A point fits when its host layers exceed a threshold that other values move: those whose
    pull on memory is known in their direction, all others either way.
    """

    def __init__(self, grid: Grid, *, seed: int = 0) -> None:
        self._grid = grid
        rng = np.random.default_rng(seed)
        self._moves: list[tuple[int, Floats]] = []
        threshold = rng.uniform(-0.1, 1.0, _PARTICLES)
        threshold[rng.random(_PARTICLES) < _NOTHING_FAILS_SHARE] = -10.0
        self._threshold = threshold
        self._layers: tuple[int, Floats] | None = None
        for place, axis in enumerate(grid.axes):
            needs = np.array([demand(axis.name, value) for value in axis.values])
            if axis.name == HOST_LAYERS_AXIS:
                self._layers = (place, _unit(-needs))
            elif not np.isnan(needs).any():
                pull = np.abs(rng.normal(0.0, 0.2, _PARTICLES))
                self._moves.append((place, np.outer(_unit(needs), pull)))
            else:
                moves = rng.normal(0.0, 0.05, (len(axis.values), _PARTICLES))
                self._moves.append((place, moves))
        self._log_weights = np.zeros(_PARTICLES)

    def add_outcome(self, row: Rows, *, fitted: bool) -> None:
        """A launch of that row did or did not fit."""
        z = self._margins(row[None, :])[0] / 0.03
        self._log_weights += np.maximum(log_ndtr(z if fitted else -z), -9.0)

    def probability(self, rows: Rows) -> Floats:
        """The chance that rows fit, of shape (rows,)."""
        weights = np.exp(self._log_weights - self._log_weights.max())
        found: Floats = ndtr(self._margins(rows) / 0.03) @ (weights / weights.sum())
        return found

    def _margins(self, rows: Rows) -> Floats:
        layers = np.full(len(rows), 0.9)
        if self._layers is not None:
            place, share = self._layers
            layers = np.nan_to_num(share[rows[:, place]], nan=0.5)
        margins: Floats = layers[:, None] - self._threshold
        for place, moves in self._moves:
            margins = margins - moves[rows[:, place]]
        return margins


def _unit(values: Floats) -> Floats:
    """Values brought to 0..1; a constant becomes 0."""
    low, high = np.nanmin(values), np.nanmax(values)
    return np.zeros_like(values) if high == low else (values - low) / (high - low)
