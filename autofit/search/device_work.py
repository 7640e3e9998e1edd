"""The work of each device at the points of a grid: layers that it holds and computes.

Layouts with different names often give a device nearly the same layers, and one layout gives it
very different ones for few and for many host layers. So the cost model and the kernel compare
the work of devices, and not the names of layouts.

A placement takes milliseconds, and a grid has tens of thousands of points. So placements are
computed for some numbers of host layers of each layout, with the first values of all other
settings, and work is interpolated between them. It is exact where a decision depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autofit.memory.demand import demand, is_free
from autofit.search.problem import DeviceWork, Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.trial.parameter_groups import PLACEMENT_PARAMS

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]

# Numbers of host layers at which placements are computed, for each layout.
_KNOTS = 7
# These and the layout decide which devices have work.
_PLACING_PARAMS = frozenset({*PLACEMENT_PARAMS, "split_mode", "main_gpu"})


@dataclass(frozen=True, slots=True)
class WorkMatrix:
    """The work of devices at some points.

    Attributes:
        layers: layers on each device, of shape (points, devices).
        host_layers: those of them whose experts are in system RAM, of shape (points, devices).
        uploads: 1 for the device that computes the prompts of host layers: (points, devices).
        whole_layers: layers that are in system RAM as a whole, of shape (points,).
        is_divided: 1 if every layer is divided over the devices, of shape (points,).
    """

    layers: Floats
    host_layers: Floats
    uploads: Floats
    whole_layers: Floats
    is_divided: Floats

    @property
    def used_devices(self) -> Floats:
        """The number of devices with a layer, of shape (points,)."""
        used: Floats = (self.layers > _SOME).sum(axis=1).astype(float)
        return used

    @property
    def weights(self) -> Floats:
        """Layers, and layers with experts, on each device, of shape (points, 2, devices)."""
        return np.stack([self.layers, self.layers - self.host_layers], axis=1)

    @property
    def features(self) -> Floats:
        """Layers and host layers of all devices, of shape (points, 2, devices)."""
        return np.stack([self.layers, self.host_layers], axis=1)


# Interpolated layers may be fractions.
_SOME = 0.5
_ROUNDING = 1e-6


class DeviceWorkTable:
    """The work of devices at the points of a problem that places a model on several devices."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._axes = problem.axes
        names = [axis.name for axis in self._axes]
        self._layers = names.index(HOST_LAYERS_AXIS)
        self._placing = [
            column
            for column, axis in enumerate(self._axes)
            if axis.name == LAYOUT_AXIS or _PLACING_PARAMS & set(axis.params)
        ]
        self._deciding = [
            column for column, axis in enumerate(self._axes) if not is_free(axis.name, "device")
        ]
        self._curves: dict[tuple[int, ...], tuple[Floats, Floats]] = {}
        self._counting = [*self._placing, self._layers]
        self._exact: dict[int, Floats] = {}
        # The last exact work with each layout and number of host layers, for other settings.
        self._near: dict[int, Floats] = {}
        self._last: tuple[Rows, WorkMatrix] | None = None

    def is_exact(self, row: Sequence[int]) -> bool:
        """Return whether the work at a row was computed."""
        return self._code(row, self._deciding) in self._exact

    def learn(self, row: Sequence[int]) -> None:
        """Compute the exact work at a row."""
        code = self._code(row, self._deciding)
        work = self._exact[code] if code in self._exact else self._work_of(row)
        if work is not None:
            self._exact[code] = self._near[self._code(row, self._counting)] = work
            self._last = None

    def _code(self, row: Sequence[int], columns: Sequence[int]) -> int:
        return int(self._codes(np.array([row]), columns)[0])

    def _codes(self, rows: Rows, columns: Sequence[int]) -> Rows:
        codes = np.zeros(len(rows), dtype=np.int64)
        for column in columns:
            codes = codes * len(self._axes[column].values) + rows[:, column]
        return codes

    def at(self, rows: Rows) -> WorkMatrix:
        """Return the work at rows, of shape (rows, axes)."""
        # The terms of both parts and the kernel ask for the same rows.
        if self._last is None or self._last[0] is not rows:
            self._last = rows, self._at(rows)
        return self._last[1]

    def _at(self, rows: Rows) -> WorkMatrix:
        devices = len(self._problem.devices)
        found = np.zeros((len(rows), 3 * devices + 2))
        keys, back = np.unique(rows[:, self._placing], axis=0, return_inverse=True)
        for index, placing in enumerate(keys):
            here = back.reshape(-1) == index
            knots, values = self._curve(tuple(placing.tolist()))
            host_layers = rows[here, self._layers].astype(float)
            found[here] = np.stack([np.interp(host_layers, knots, v) for v in values.T], axis=1)
        for columns, known in ((self._counting, self._near), (self._deciding, self._exact)):
            if known:
                codes, works = np.array(list(known)), np.array(list(known.values()))
                order = np.argsort(codes)
                asked = self._codes(rows, columns)
                at = np.minimum(np.searchsorted(codes[order], asked), len(codes) - 1)
                is_known = codes[order][at] == asked
                found[is_known] = works[order][at[is_known]]
        layers, hosted, uploads, rest = np.split(
            found, [devices, 2 * devices, 3 * devices], axis=1
        )
        return WorkMatrix(layers, hosted, np.round(uploads), rest[:, 0], np.round(rest[:, 1]))

    def covers(self, rows: Rows, other: Rows) -> NDArray[np.bool_]:
        """Return which rows have at least as much on every device as another row, of one kind."""
        return self._compared(rows, other, 1.0)

    def is_covered(self, rows: Rows, other: Rows) -> NDArray[np.bool_]:
        """Return which rows have at most as much on every device as another row, of one kind."""
        return self._compared(rows, other, -1.0)

    def _compared(self, rows: Rows, other: Rows, sign: float) -> NDArray[np.bool_]:
        here, there = self.at(rows), self._at(other[None])
        more = sign * (here.weights - there.weights) >= -_ROUNDING
        is_same = (here.uploads == there.uploads).all(axis=1)
        is_same &= here.is_divided == there.is_divided
        found: NDArray[np.bool_] = more.all(axis=(1, 2)) & is_same
        return found

    def structures(self, rows: Rows) -> list[tuple[bool, ...]]:
        """Return what differs in kind between placements: equal for rows on the same devices.

        A placement without host layers is of another kind than one with some.
        """
        work = self.at(rows)
        has_host = (work.host_layers.sum(axis=1) + work.whole_layers) > _SOME
        kinds = np.concatenate(
            [
                work.layers > _SOME,
                work.uploads > _SOME,
                has_host[:, None],
                work.is_divided[:, None] > _SOME,
            ],
            axis=1,
        )
        return [tuple(kind) for kind in kinds.tolist()]

    def _curve(self, key: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Return numbers of host layers and the work with them: (knots,), (knots, features)."""
        if key not in self._curves:
            self._curves[key] = self._compute_curve(key)
        return self._curves[key]

    def _compute_curve(self, key: tuple[int, ...]) -> tuple[Floats, Floats]:
        most = len(self._axes[self._layers].values) - 1
        knots = np.unique([0, 1, *np.linspace(0, most, _KNOTS).astype(int)])
        found: dict[int, Floats] = {}
        for row in self._references(key):
            for host_layers in knots.tolist():
                row[self._layers] = host_layers
                work = None if host_layers in found else self._work_of(row)
                if work is not None:
                    found[host_layers] = work
        if not found:  # no point of these exists
            return np.zeros(1), np.zeros((1, 3 * len(self._problem.devices) + 2))
        known = sorted(found)
        return np.array(known, dtype=float), np.stack([found[count] for count in known])

    def _references(self, key: tuple[int, ...]) -> Iterator[list[int]]:
        """Yield rows with the first values, and with those that need the least device memory."""
        for choose in (lambda _: 0, _least_demanding):
            row = [self._index(choose, column) for column in range(len(self._axes))]
            for column, index in zip(self._placing, key, strict=True):
                row[column] = index
            yield row

    def _index(self, choose: Callable[[Sequence[float]], int], column: int) -> int:
        axis = self._axes[column]
        return choose([demand(axis.name, value) for value in axis.values])

    def _work_of(self, row: Sequence[int]) -> Floats | None:
        point: Point = {
            axis.name: axis.values[index] for axis, index in zip(self._axes, row, strict=True)
        }
        candidate = self._problem.candidate_of(point)
        work = self._problem.work_of(candidate) if candidate is not None else None
        return None if work is None else _to_features(work)


def _least_demanding(demands: Sequence[float]) -> int:
    return 0 if np.isnan(demands).any() else int(np.argmin(demands))


def _to_features(work: DeviceWork) -> Floats:
    uploads = [float(index == work.first) for index in range(len(work.layers))]
    rest = [work.whole_layers, work.is_divided]
    return np.array([*work.layers, *work.host_layers, *uploads, *rest], dtype=float)
