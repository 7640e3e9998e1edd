"""How alike two points are: what one shows of the other beyond what the physics says."""

from __future__ import annotations

import math

import numpy as np

from autofit.search.dominance import kv_bytes
from autofit.search.grid import Floats, Grid, Rows, number
from autofit.search.space import HOST_LAYERS_AXIS, Axis

# Distance at which two points still tell 60% of each other: a sixth of the host layers, half
# a byte of a cached number, one doubling, one step of any other number; different words are
# as far as this too.
_LAYERS_SHARE = 1 / 6
_KV_BYTES = 0.5
# What a point has of its own and shares with no neighbour: cliffs are that steep.
_OWN_SHARE = 0.2
# Settings that seldom matter bring points no further apart than this share of it.
_MINOR = {"batch": 0.3, "threads": 0.5, "threads_batch": 0.5}
_DOUBLED = frozenset({"ubatch", "batch", "op_offload_min_batch"})
_KV_AXES = frozenset({"cache_type", "cache_type_k", "cache_type_v"})


class Similarity:
    """The kernel of the residual: 1 for the same point, falling with distance."""

    def __init__(self, grid: Grid) -> None:
        self._scales = [_scale(axis) for axis in grid.axes]
        self._weights = [_MINOR.get(axis.name, 1.0) ** 2 for axis in grid.axes]

    def between(self, rows: Rows, others: Rows) -> Floats:
        """Similarities, of shape (rows, others)."""
        distance = np.zeros((len(rows), len(others)))
        for place, (scale, weight) in enumerate(zip(self._scales, self._weights, strict=True)):
            here, there = rows[:, place], others[:, place]
            if scale is None:
                distance += weight * (here[:, None] != there[None, :])
            else:
                distance += weight * (scale[here][:, None] - scale[there][None, :]) ** 2
        found: Floats = (1 - _OWN_SHARE) * np.exp(-0.5 * distance) + _OWN_SHARE * (distance == 0)
        return found


def _scale(axis: Axis) -> Floats | None:
    """Where each value of an axis lies; None where values are only equal or not."""
    values = np.array([_number(axis.name, value) for value in axis.values])
    if np.isnan(values).any() or len(values) < 2:  # noqa: PLR2004
        return None
    if axis.name == HOST_LAYERS_AXIS:
        values /= max(1.0, _LAYERS_SHARE * np.ptp(values))
    elif axis.name in _KV_AXES:
        values /= _KV_BYTES
    elif axis.name in _DOUBLED and values.min() > 0:
        values = np.log2(values)
    else:
        values = np.argsort(np.argsort(values)).astype(float)
    return values


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or value == "":
        return math.nan
    text = str(value)
    return kv_bytes(text) if name in _KV_AXES else number(text)
