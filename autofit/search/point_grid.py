"""Points of a problem as rows of integers, so that thousands are evaluated at once.

A row has one column for each axis. It holds the index of the value among the axis's values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from autofit.memory.demand import MEMORIES, Demands, Memory, demands_of, number
from autofit.memory.dominance import needing_at_least, needing_at_most
from autofit.search.device_work import DeviceWorkTable, Floats, Rows
from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Point
from autofit.trial.candidate import ParamValue
from autofit.trial.parameter_groups import HOST_ONLY_PARAMS

__all__ = ["Floats", "PointGrid", "Rows"]

# These rarely matter, and need no memory.
MINOR_AXES = frozenset({"batch", "threads", "threads_batch"})
# Of more combinations only some are listed: those near the best known points, and a random
# sample of the rest.
_MOST_COMBINATIONS = 2000
# The shipped spaces have a tenth of these neighbours. A point takes a kilobyte.
_MOST_NEIGHBOURS = 20_000


class PointGrid:
    """Conversion of points to rows and back, and the list of combinations to evaluate.

    `demands` maps a memory to the demands of the values of each axis. `work` is the work of each
    device, or None with one device or an unknown placement.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.axes = problem.axes
        self._indices = [{value: i for i, value in enumerate(axis.values)} for axis in self.axes]
        self._columns = {param: i for i, axis in enumerate(self.axes) for param in axis.params}
        self._columns.update({axis.name: i for i, axis in enumerate(self.axes)})
        self._all: Rows | None = None
        self.demands: dict[Memory, Demands] = {
            memory: [demands_of(axis.name, axis.values, memory) for axis in self.axes]
            for memory in MEMORIES
        }
        has_work = len(problem.devices) > 1 and problem.searches_layouts
        self.work = DeviceWorkTable(problem) if has_work else None

    def row_of(self, point: Point) -> tuple[int, ...] | None:
        """Return the row of a point, or None if an axis of the problem lacks a value of it."""
        if set(point) != {axis.name for axis in self.axes}:
            return None
        indices = [
            known.get(point[axis.name])
            for axis, known in zip(self.axes, self._indices, strict=True)
        ]
        return None if None in indices else tuple(i for i in indices if i is not None)

    def is_eligible(self, row: Sequence[int]) -> bool:
        """Return whether a row is a point of the problem that may be proposed."""
        if self.problem.points:
            exists = tuple(row) in {self.row_of(point) for point in self.problem.points}
        else:
            exists = self.problem.space.allows(self.point_of(row))
        acts = bool(self.sets_only_what_acts(np.array([row]))[0])
        return exists and acts and self.problem.is_eligible(self.point_of(row))

    def sets_only_what_acts(self, rows: Rows) -> NDArray[np.bool_]:
        """Return which rows have the first value of each setting that has no effect there.

        Some settings matter only with host layers. Without any, rows that differ in them are
        one candidate, which is worth one launch.
        """
        layers = self.column_of(HOST_LAYERS_AXIS)
        if layers is None or self.problem.points:
            return np.ones(len(rows), dtype=bool)
        idle = [
            column
            for column, axis in enumerate(self.axes)
            if set(axis.params) <= set(HOST_ONLY_PARAMS)
        ]
        counts = np.array([number(value) for value in self.axes[layers].values])
        acts: NDArray[np.bool_] = (counts[rows[:, layers]] != 0) | (rows[:, idle] == 0).all(axis=1)
        return acts

    def point_of(self, row: Sequence[int] | Rows) -> Point:
        """Return the point of a row."""
        return {
            axis.name: axis.values[int(index)] for axis, index in zip(self.axes, row, strict=True)
        }

    def is_near_copy(self, point: Point, other: Point) -> bool:
        """Return whether the difference between two points is too small to matter.

        They differ at most in minor axes and by one layer on each device.
        """
        rows = [self.row_of(point), self.row_of(other)]
        if None in rows:
            return point == other
        here, there = np.array(rows)
        placed = (LAYOUT_AXIS, HOST_LAYERS_AXIS)
        compared = [
            column
            for column, axis in enumerate(self.axes)
            if axis.name not in MINOR_AXES and not (self.work and axis.name in placed)
        ]
        steps = np.abs(here - there)[compared]
        layers = self.column_of(HOST_LAYERS_AXIS)
        most = np.array([column == layers for column in compared], dtype=np.int64)
        if (steps > most).any():
            return False
        if self.work is None:
            return True
        for row in (here, there):
            self.work.learn(row.tolist())
        work = self.work.at(np.array([here, there]))
        one, two = work.features
        return bool(np.abs(one - two).max() <= 1.0 and np.ptp(work.is_divided) == 0)

    def needing_at_least(self, memory: Memory, rows: Rows, other: Rows) -> NDArray[np.bool_]:
        """Return which rows need at least as much of a memory as another row: (rows,).

        With several devices what lies on each of them is compared, and not layouts: two layouts
        can place layers equally, and one can place them differently with one host layer less.
        """
        demands = self._unplaced_demands(memory)
        found = needing_at_least(demands, rows, other)
        if self.work is not None and memory == "device":
            found &= self.work.covers(rows, other)
        return found

    def needing_at_most(self, memory: Memory, rows: Rows, other: Rows) -> NDArray[np.bool_]:
        """Return which rows need at most as much of a memory as another row: (rows,)."""
        found = needing_at_most(self._unplaced_demands(memory), rows, other)
        if self.work is not None and memory == "device":
            found &= self.work.is_covered(rows, other)
        return found

    def _unplaced_demands(self, memory: Memory) -> Demands:
        """Return the demands of all axes but those whose effect `work` knows."""
        if self.work is None or memory == "host":
            return self.demands[memory]
        placed = (LAYOUT_AXIS, HOST_LAYERS_AXIS)
        pairs = zip(self.axes, self.demands[memory], strict=True)
        return [None if axis.name in placed else values for axis, values in pairs]

    def column_of(self, name: str) -> int | None:
        """Return the column of an axis, or of a runtime parameter that an axis sets."""
        return self._columns.get(name)

    def codes(self, rows: Rows, columns: Sequence[int]) -> Rows:
        """Return one integer per row, equal where the given columns are equal."""
        codes = np.zeros(len(rows), dtype=np.int64)
        for column in columns:
            codes = codes * len(self.axes[column].values) + rows[:, column]
        return codes

    def numbers(
        self, rows: Rows, name: str, convert: Callable[[ParamValue], float], default: ParamValue
    ) -> Floats:
        """Return the values of a runtime parameter as numbers, of shape (rows,).

        Args:
            rows: of shape (rows, axes).
            name: of the parameter or axis. If no axis sets it, its pinned value counts.
            convert: returns the number of a value.
            default: replaces a blank value and a parameter without a value.
        """
        column = self.column_of(name)
        if column is None:
            value = self.problem.space.pinned.get(name, default)
            return np.full(len(rows), convert(value))
        values = [convert(default if v == "" else v) for v in self.axes[column].values]
        return np.array(values)[rows[:, column]]

    def combinations(self, near: Sequence[Sequence[int]]) -> Rows:
        """Return the rows of all eligible combinations, with index 0 for layout and host layers.

        Of too many combinations it returns those that differ from a row in `near` in at most
        two axes, and as many random ones.
        """
        if self._all is None:
            if self.problem.points:
                self._all = self._rows(self._eligible(self.problem.points))
            elif self.problem.space.size <= _MOST_COMBINATIONS:
                self._all = self._rows(self._eligible(self.problem.space.points()))
        return self._sample(near) if self._all is None else self._all

    def _rows(self, points: Iterable[Point]) -> Rows:
        """Return the rows of points, which may lack layout and host layers."""
        first: dict[str, ParamValue] = {}
        if self.problem.searches_layouts:
            first = {LAYOUT_AXIS: self.problem.layouts[0], HOST_LAYERS_AXIS: 0}
        rows = [self.row_of({**first, **point}) for point in points]
        found = [row for row in rows if row is not None]
        return np.array(found, dtype=np.int64).reshape(len(found), len(self.axes))

    def _sample(self, near: Sequence[Sequence[int]]) -> Rows:
        axes = self.problem.space.axes
        rng = np.random.default_rng(0)
        starts = [{axis.name: axis.values[0] for axis in axes}]
        starts += [{axis.name: self.point_of(row)[axis.name] for axis in axes} for row in near]
        near_points = (point for start in starts for point in _neighbours(start, axes, rng))
        found = {tuple(point.values()): point for point in near_points}
        for _ in range(_MOST_COMBINATIONS):
            point = {axis.name: axis.values[int(rng.integers(len(axis.values)))] for axis in axes}
            found.setdefault(tuple(point.values()), point)
        allowed = (p for p in self._eligible(found.values()) if self.problem.space.allows(p))
        return self._rows(itertools.islice(allowed, 2 * _MOST_COMBINATIONS))

    def _eligible(self, points: Iterable[Point]) -> Iterator[Point]:
        return (point for point in points if self.problem.is_eligible(point))


def _neighbours(start: Point, axes: Sequence[Axis], rng: np.random.Generator) -> Iterator[Point]:
    """Yield a point and those that differ from it in at most two axes, or a sample of many."""
    yield start
    pairs = list(itertools.combinations_with_replacement(axes, 2))
    share = _MOST_NEIGHBOURS / sum(len(one.values) * len(two.values) for one, two in pairs)
    for first, second in pairs:
        values: Iterable[tuple[ParamValue, ParamValue]]
        values = itertools.product(first.values, second.values)
        if share < 1:
            count = max(1, int(share * len(first.values) * len(second.values)))
            values = _sampled_pairs(first, second, count, rng)
        for one, other in values:
            yield {**start, first.name: one, second.name: other}


def _sampled_pairs(
    first: Axis, second: Axis, count: int, rng: np.random.Generator
) -> Iterator[tuple[ParamValue, ParamValue]]:
    ones, others = (rng.integers(len(axis.values), size=count) for axis in (first, second))
    for one, other in zip(ones, others, strict=True):
        yield first.values[int(one)], second.values[int(other)]
