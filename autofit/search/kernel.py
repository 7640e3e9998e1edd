"""The kernel of the residual: the correlation of two points beyond the cost terms.

With scaled distances d_a of two points along the axes a,

    k = 0.8 exp(-sum_a d_a^2 / 2) + 0.2 [major axes equal] exp(-sum_minor d_a^2)

The first term is a squared exponential. The second one belongs to a point alone, so that the
cost may have a cliff between two neighbours. Points that differ only in minor axes share it,
since otherwise each of them would seem to be worth a launch.
"""

from __future__ import annotations

import math

import numpy as np

from autofit.memory.demand import KV_AXES, kv_bytes, number
from autofit.search.device_work import WorkMatrix
from autofit.search.point_grid import Floats, PointGrid, Rows
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, is_single_device
from autofit.trial.candidate import ParamValue

# With several devices the layers and host layers of each are compared, and not layouts. Moving
# two thirds of the layers from one device to another is about one length scale.
_DEVICE_LAYERS_SCALE_SHARE = 0.9
# Length scales, at which the first term is exp(-1/2) = 0.6: a sixth of the host layers, half a
# byte per KV element, one doubling of a batch size, one step of any other number. Two different
# texts are one length scale apart.
_LAYERS_SCALE_SHARE = 1 / 6
_KV_SCALE_BYTES = 0.5
# Distances along minor axes, which rarely matter, are multiplied by these weights, and so are
# distances between layouts over the same devices.
MINOR_AXIS_WEIGHTS = {"batch": 0.3, "threads": 0.5, "threads_batch": 0.5, "numa": 0.5}
_SAME_DEVICES_WEIGHT = 0.5
_POINT_SHARE = 0.2
_POINT_DECAY = 1.0
_DOUBLING_AXES = frozenset({"ubatch", "batch", "op_offload_min_batch"})


class Kernel:
    """The kernel of the points of a grid; it is 1 for equal points."""

    def __init__(self, grid: PointGrid) -> None:
        self._grid = grid
        self._distances = {
            column: _distances(axis)
            for column, axis in enumerate(grid.axes)
            if grid.work is None or axis.name not in (LAYOUT_AXIS, HOST_LAYERS_AXIS)
        }
        self._is_minor = [axis.name in MINOR_AXIS_WEIGHTS for axis in grid.axes]

    def matrix(self, rows: Rows, others: Rows) -> Floats:
        """Return the kernel matrix, of shape (rows, others)."""
        squares = np.zeros((2, len(rows), len(others)))
        for column, distances in self._distances.items():
            step = distances[rows[:, column][:, None], others[:, column][None, :]]
            squares[int(self._is_minor[column])] += step**2
        if self._grid.work is not None:
            squares[0] += _work_squares(self._grid.work.at(rows), self._grid.work.at(others))
        major, minor = squares
        shared = np.exp(-0.5 * (major + minor))
        own = (major == 0) * np.exp(-_POINT_DECAY * minor)
        kernel: Floats = (1 - _POINT_SHARE) * shared + _POINT_SHARE * own
        return kernel


def _work_squares(here: WorkMatrix, there: WorkMatrix) -> Floats:
    """Return the squared scaled distances of the work of devices, of shape (rows, others)."""
    squares = (here.is_divided[:, None] - there.is_divided[None, :]) ** 2
    total = float(max(1.0, here.layers.sum(axis=1).max(initial=0.0)))
    for ours, theirs, share in (
        (here.layers, there.layers, _DEVICE_LAYERS_SCALE_SHARE),
        (here.host_layers, there.host_layers, _LAYERS_SCALE_SHARE),
    ):
        for device in range(ours.shape[1]):
            step = ours[:, device][:, None] - theirs[:, device][None, :]
            squares += (step / (share * total)) ** 2
    return squares


def _distances(axis: Axis) -> Floats:
    """Return the scaled distances of the values of an axis, of shape (values, values)."""
    scaled = _scaled_values(axis)
    if scaled is None:
        distances = 1.0 - np.eye(len(axis.values))
    else:
        distances = np.abs(scaled[:, None] - scaled[None, :])
    if axis.name == LAYOUT_AXIS:
        shared = np.array([not is_single_device(value) for value in axis.values])
        distances[np.outer(shared, shared)] *= _SAME_DEVICES_WEIGHT
    weighted: Floats = distances * MINOR_AXIS_WEIGHTS.get(axis.name, 1.0)
    return weighted


def _scaled_values(axis: Axis) -> Floats | None:
    """Return the values of an axis in length scales, or None for texts."""
    values = np.array([_number(axis.name, value) for value in axis.values])
    if np.isnan(values).any():
        return None
    if axis.name == HOST_LAYERS_AXIS:
        values /= max(1.0, _LAYERS_SCALE_SHARE * np.ptp(values))
    elif axis.name in KV_AXES:
        values /= _KV_SCALE_BYTES
    elif axis.name in _DOUBLING_AXES and values.min() > 0:
        values = np.log2(values)
    else:
        values = np.argsort(np.argsort(values)).astype(float)
    return values


def _number(name: str, value: ParamValue) -> float:
    if isinstance(value, bool) or value == "":
        return math.nan
    return kv_bytes(value) if name in KV_AXES else number(value)
