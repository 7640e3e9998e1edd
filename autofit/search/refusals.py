"""The probability that points do not fail for another reason than memory, usually a refusal.

A runtime refuses a value in every combination, or two values together. The cause of a failure is
one of its values with which no launch ran, or one of its pairs of values that never ran
together. The probability of each cause follows from the launches, and the points with likely
causes are unlikely to run. If every value and pair ran, the failure lowers similar points.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autofit.memory.demand import KV_AXES
from autofit.search.kernel import Kernel
from autofit.search.observations import GridObservation
from autofit.search.point_grid import MINOR_AXES, Floats, PointGrid, Rows
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS

# Usual values are rarely the cause of a refusal: their weight, relative to that of other values.
# These are all numbers and placements, KV types, whose refusals a dialect knows, and the first
# value of every other axis.
_USUAL = MINOR_AXES | KV_AXES | {HOST_LAYERS_AXIS, LAYOUT_AXIS, "ubatch"}
_USUAL_WEIGHT = 0.15
# The weight of a pair relative to a value, unless the runtime said that it refuses a combination.
_PAIR_WEIGHT = 0.25
# A feature that is on in another strength, such as a cache of another size, is refused as often.
_SAME_FEATURE = 0.9
_OFF = frozenset({"off", "false", "0"})
# A point with a certain cause keeps this probability.
_MIN_PROBABILITY = 0.05
# Prior weight, in launches, of a success against an unexplained failure.
_SUCCESS_PRIOR = 0.25


def probability_without_refusal(
    grid: PointGrid, kernel: Kernel, rows: Rows, failed: Sequence[GridObservation], ran: Rows
) -> Floats:
    """Return the probability that rows do not fail for a reason other than memory: (rows,).

    Args:
        grid: the grid of the rows.
        kernel: of the grid.
        rows: of shape (points, axes).
        failed: launches that failed for such a reason.
        ran: rows of launches that ran.
    """
    probabilities = np.ones(len(rows))
    features = _features(grid)
    is_usual = np.array([axis.name in _USUAL for axis in grid.axes])
    unexplained = []
    for failure in failed:
        row = np.array(failure.row)
        is_combination = failure.observation.is_combination
        # Indices of features: equal for all values of a feature that is on.
        here, there, known = (_indices(features, points) for points in (rows, row[None], ran))
        weights = np.where(is_usual | (row == 0), _USUAL_WEIGHT, 1.0)
        alone = weights * ~(ran == row).any(axis=0) * (0.0 if is_combination else 1.0)
        together = (known == there).astype(float)
        pairs = np.outer(weights, weights)
        pairs[together.T @ together > 0] = 0.0
        pairs = np.triu(pairs, 1) * (1.0 if is_combination else _PAIR_WEIGHT)
        if not alone.any() and not pairs.any():
            unexplained.append(row)
            continue
        is_untried = ~(known == there).any(axis=0)
        match = np.where(here == there, np.where(rows == row, 1.0, _SAME_FEATURE), 0.0)
        caused = np.where(rows == row, 1.0, match * is_untried) @ alone
        caused += np.einsum("rc,cd,rd->r", match, pairs, match)
        share = caused / (alone.sum() + pairs.sum())
        probabilities *= np.maximum(1 - share, _MIN_PROBABILITY)
    if unexplained:
        failures = kernel.matrix(rows, np.array(unexplained)).sum(axis=1)
        successes = kernel.matrix(rows, ran).sum(axis=1)
        probabilities *= (_SUCCESS_PRIOR + successes) / (_SUCCESS_PRIOR + successes + failures)
    return probabilities


def _features(grid: PointGrid) -> list[NDArray[np.int64]]:
    """Return an integer for each value of each axis, equal for all values that turn it on."""
    found = []
    for axis in grid.axes:
        is_off = np.array([str(value).lower() in _OFF for value in axis.values])
        has_strengths = is_off.any() and axis.name not in _USUAL
        found.append((~is_off).astype(np.int64) if has_strengths else np.arange(len(is_off)))
    return found


def _indices(features: Sequence[NDArray[np.int64]], rows: Rows) -> Rows:
    return np.stack([known[rows[:, column]] for column, known in enumerate(features)], axis=1)
