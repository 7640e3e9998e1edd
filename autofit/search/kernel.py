"""How alike two points are: what one shows of the other beyond what the physics says."""

from __future__ import annotations

import math

import numpy as np

from autofit.memory.demand import KV_AXES, kv_bytes, number
from autofit.search.point_grid import Floats, Grid, Rows
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, is_single_device
from autofit.trial.candidate import ParamValue

# Distance at which two points still tell 60% of each other: a sixth of the host layers, half
# a byte of a cached number, one doubling, one step of any other number; different words are
# as far as this too.
_LAYERS_SHARE = 1 / 6
_KV_BYTES = 0.5
# Settings that seldom matter bring points no further apart than this share of it, and so do
# layouts over the same devices.
MINOR = {"batch": 0.3, "threads": 0.5, "threads_batch": 0.5}
_SAME_DEVICES = 0.5
# What a point has of its own and shares with no neighbour: cliffs are that steep. Points that
# differ in what seldom matters share most of it, or each would be worth a launch.
_OWN_SHARE = 0.2
_MINOR_OWN = 1.0
_DOUBLED = frozenset({"ubatch", "batch", "op_offload_min_batch"})


class Kernel:
    """The kernel of the residual: 1 for the same point, falling with distance."""

    def __init__(self, grid: Grid) -> None:
        self._distances = [_distances(axis) for axis in grid.axes]
        self._is_minor = [axis.name in MINOR for axis in grid.axes]

    def between(self, rows: Rows, others: Rows) -> Floats:
        """Similarities, of shape (rows, others)."""
        squares = np.zeros((2, len(rows), len(others)))
        for place, distances in enumerate(self._distances):
            step = distances[rows[:, place][:, None], others[:, place][None, :]]
            squares[int(self._is_minor[place])] += step**2
        major, minor = squares
        shared = np.exp(-0.5 * (major + minor))
        own = (major == 0) * np.exp(-_MINOR_OWN * minor)
        found: Floats = (1 - _OWN_SHARE) * shared + _OWN_SHARE * own
        return found


def _distances(axis: Axis) -> Floats:
    """How far the values of an axis lie apart, of shape (values, values)."""
    scaled = _scaled(axis)
    if scaled is None:
        distances = 1.0 - np.eye(len(axis.values))
    else:
        distances = np.abs(scaled[:, None] - scaled[None, :])
    if axis.name == LAYOUT_AXIS:
        shared = np.array([not is_single_device(value) for value in axis.values])
        distances[np.outer(shared, shared)] *= _SAME_DEVICES
    found: Floats = distances * MINOR.get(axis.name, 1.0)
    return found


def _scaled(axis: Axis) -> Floats | None:
    """Where each value of an axis lies on its scale; None where values are words."""
    values = np.array([_number(axis.name, value) for value in axis.values])
    if np.isnan(values).any():
        return None
    if axis.name == HOST_LAYERS_AXIS:
        values /= max(1.0, _LAYERS_SHARE * np.ptp(values))
    elif axis.name in KV_AXES:
        values /= _KV_BYTES
    elif axis.name in _DOUBLED and values.min() > 0:
        values = np.log2(values)
    else:
        values = np.argsort(np.argsort(values)).astype(float)
    return values


def _number(name: str, value: ParamValue) -> float:
    if isinstance(value, bool) or value == "":
        return math.nan
    return kv_bytes(value) if name in KV_AXES else number(value)
