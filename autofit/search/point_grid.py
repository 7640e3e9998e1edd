"""The points of a problem as rows of whole numbers, so that thousands are judged at once.

A row holds, for each axis of the problem, the place of its value among the axis's values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Point
from autofit.trial.candidate import ParamValue

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]

# With more combinations than this only some are looked at: those near the best known ones
# and a random share of the rest.
_MOST_COMBINATIONS = 2000


class Grid:
    """Encodes points as rows and back, and lists the points worth looking at."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.axes = problem.axes
        self._places = [{value: i for i, value in enumerate(axis.values)} for axis in self.axes]
        self._by_param = {param: i for i, axis in enumerate(self.axes) for param in axis.params}
        self._by_param.update({axis.name: i for i, axis in enumerate(self.axes)})
        self._all: Rows | None = None

    def row_of(self, point: Point) -> tuple[int, ...] | None:
        """The row of a point, None where the point is not one of the problem's."""
        if set(point) != {axis.name for axis in self.axes}:
            return None
        places = [
            known.get(point[axis.name])
            for axis, known in zip(self.axes, self._places, strict=True)
        ]
        return None if None in places else tuple(place for place in places if place is not None)

    def is_point(self, row: Sequence[int]) -> bool:
        """Whether a row is one of the problem's points: not every combination need be."""
        if self.problem.points:
            is_one = tuple(row) in {self.row_of(point) for point in self.problem.points}
        else:
            is_one = self.problem.space.allows(self.point_of(row))
        return is_one and self.problem.is_wanted(self.point_of(row))

    def point_of(self, row: Sequence[int] | Rows) -> Point:
        """The point of a row."""
        return {
            axis.name: axis.values[int(place)] for axis, place in zip(self.axes, row, strict=True)
        }

    def place(self, name: str) -> int | None:
        """The column of an axis or of a param that an axis sets."""
        return self._by_param.get(name)

    def codes(self, rows: Rows, places: Sequence[int]) -> Rows:
        """One whole number a row, equal where the columns at those places are: (rows,)."""
        found = np.zeros(len(rows), dtype=np.int64)
        for place in places:
            found = found * len(self.axes[place].values) + rows[:, place]
        return found

    def column(
        self, rows: Rows, name: str, read: Callable[[ParamValue], float], default: ParamValue
    ) -> Floats:
        """A param as numbers, one per row; where no axis sets it, what is pinned or the default.

        Args:
            rows: of shape (points, axes).
            name: of the param or axis.
            read: turns a value into a number.
            default: what a blank value and a param without a value stand for.
        """
        place = self.place(name)
        if place is None:
            value = self.problem.space.pinned.get(name, default)
            return np.full(len(rows), read(value))
        values = [read(default if v == "" else v) for v in self.axes[place].values]
        return np.array(values)[rows[:, place]]

    def combinations(self, near: Sequence[Sequence[int]]) -> Rows:
        """Rows of the axes apart from layout and host layers, which are 0 in all of them.

        Where there are too many, those within two changes of the rows in `near` and as many
        at random.
        """
        if self._all is None:
            if self.problem.points:
                rows = [self.row_of(point) for point in self._wanted(self.problem.points)]
                found = [row for row in rows if row is not None]
                self._all = np.array(found, dtype=np.int64).reshape(len(found), len(self.axes))
            elif self.problem.space.size <= _MOST_COMBINATIONS:
                self._all = self._rows(self._wanted(self.problem.space.points()))
        return self._some(near) if self._all is None else self._all

    def _rows(self, points: Iterator[Point]) -> Rows:
        kept: dict[str, ParamValue] = {}
        if self.problem.searches_layouts:
            kept = {LAYOUT_AXIS: self.problem.layouts[0], HOST_LAYERS_AXIS: 0}
        rows = [self.row_of({**kept, **point}) for point in points]
        found = [row for row in rows if row is not None]
        return np.array(found, dtype=np.int64).reshape(len(found), len(self.axes))

    def _some(self, near: Sequence[Sequence[int]]) -> Rows:
        axes = self.problem.space.axes
        rng = np.random.default_rng(0)
        starts = [{axis.name: axis.values[0] for axis in axes}]
        starts += [{axis.name: self.point_of(row)[axis.name] for axis in axes} for row in near]
        found = {self._key(point): point for point in _changed(starts, axes)}
        for _ in range(_MOST_COMBINATIONS):
            point = {axis.name: axis.values[int(rng.integers(len(axis.values)))] for axis in axes}
            found.setdefault(self._key(point), point)
        allowed = (p for p in self._wanted(found.values()) if self.problem.space.allows(p))
        return self._rows(itertools.islice(allowed, 2 * _MOST_COMBINATIONS))

    def _wanted(self, points: Iterable[Point]) -> Iterator[Point]:
        return (point for point in points if self.problem.is_wanted(point))

    @staticmethod
    def _key(point: Point) -> tuple[ParamValue, ...]:
        return tuple(point.values())


def _changed(starts: Sequence[Point], axes: Sequence[Axis]) -> Iterator[Point]:
    """The points and all that differ from one of them in one axis or two."""
    for start in starts:
        yield start
        for first, second in itertools.combinations_with_replacement(axes, 2):
            for one, other in itertools.product(first.values, second.values):
                yield {**start, first.name: one, second.name: other}
