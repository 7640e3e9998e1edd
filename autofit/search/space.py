"""The search space: which parameters are tried with which values, and which together.

A point assigns a value to every axis; `Space.params_of` turns it into runtime params. The
axes `layout` and `host_expert_layers` stand for the params that place layers on devices
(`model.placement.layout` makes those), so that the sampler sees two numbers and not strings.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from autofit.trial.candidate import Params, ParamValue
from autofit.trial.parameter_groups import PLACEMENT_PARAMS

Point = Mapping[str, ParamValue]

LAYOUT_AXIS = "layout"
HOST_LAYERS_AXIS = "host_expert_layers"

# Layouts that use one device alone are named so, with the device after it.
_ALONE = "single"

_COMPARISONS: dict[str, Callable[[ParamValue, ParamValue], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}


def is_alone(layout: ParamValue) -> bool:
    """Whether a layout uses one device alone."""
    return str(layout).startswith(_ALONE)


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter and the values tried, in order; `sets` names the params it assigns."""

    name: str
    values: tuple[ParamValue, ...]
    sets: tuple[str, ...] = ()

    @property
    def params(self) -> tuple[str, ...]:
        """The runtime params that a value of this axis assigns."""
        return self.sets or (self.name,)


@dataclass(frozen=True, slots=True)
class Constraint:
    """`left comparison right`, each an axis or a constant; unset axes satisfy it."""

    left: str
    comparison: str
    right: str

    def holds(self, point: Point) -> bool:
        """Whether the point satisfies it."""
        left, right = self._value(self.left, point), self._value(self.right, point)
        if left is None or right is None:
            return True
        try:
            return _COMPARISONS[self.comparison](left, right)
        except TypeError:
            return str(left) == str(right) if self.comparison == "==" else True

    @staticmethod
    def _value(word: str, point: Point) -> ParamValue | None:
        if word in point:
            return point[word]
        try:
            return float(word)
        except ValueError:
            return word.strip("'\"") if word[:1] in "'\"" else None


@dataclass(frozen=True, slots=True)
class Space:
    """Axes, layouts and constraints; `suits` says which models it is for."""

    name: str
    suits: Literal["moe", "dense", "any"]
    axes: tuple[Axis, ...]
    layouts: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    pinned: Params = field(default_factory=dict)

    @property
    def walks_layers(self) -> bool:
        """Whether the number of host layers is searched."""
        return bool(self.layouts)

    def axis(self, name: str) -> Axis | None:
        """The axis of that name, None when there is none."""
        return next((axis for axis in self.axes if axis.name == name), None)

    def allows(self, point: Point) -> bool:
        """Whether every constraint holds."""
        everything = {**self.pinned, **point}
        return all(constraint.holds(everything) for constraint in self.constraints)

    def params_of(self, point: Point) -> dict[str, ParamValue]:
        """The runtime params of a point, those of the layout excepted."""
        params: dict[str, ParamValue] = dict(self.pinned)
        for axis in self.axes:
            if axis.name in point and axis.name not in (LAYOUT_AXIS, HOST_LAYERS_AXIS):
                params.update(dict.fromkeys(axis.params, point[axis.name]))
        return params

    def pin(self, params: Params) -> Space:
        """The space with params fixed; one that places layers ends the walk over layouts."""
        fixed = set(params)
        placed = bool(fixed & set(PLACEMENT_PARAMS))
        axes = tuple(axis for axis in self.axes if not fixed & {axis.name, *axis.params})
        # Pinning one of two params that an axis sets together leaves the other to the axis.
        halves = tuple(
            Axis(f"{axis.name}", axis.values, tuple(p for p in axis.params if p not in fixed))
            for axis in self.axes
            if axis.name not in fixed and fixed & set(axis.params) and set(axis.params) - fixed
        )
        expanded = {
            name: value for given, value in params.items() for name in self._expanded(given)
        }
        return replace(
            self,
            axes=(*axes, *halves),
            layouts=() if placed else self.layouts,
            pinned={**self.pinned, **expanded},
        )

    def _expanded(self, name: str) -> tuple[str, ...]:
        axis = self.axis(name)
        return axis.params if axis else (name,)

    def with_values(self, name: str, keep: Callable[[ParamValue], bool]) -> Space:
        """The space with only those values of an axis; an axis left empty is dropped."""
        axes = (
            replace(axis, values=tuple(v for v in axis.values if keep(v)))
            if axis.name == name
            else axis
            for axis in self.axes
        )
        return replace(self, axes=tuple(axis for axis in axes if axis.values))

    def points(self) -> Iterator[Point]:
        """Every allowed point of the axes (layout and host layers not among them)."""
        names = [axis.name for axis in self.axes]
        for values in itertools.product(*(axis.values for axis in self.axes)):
            point = dict(zip(names, values, strict=True))
            if self.allows(point):
                yield point

    @property
    def size(self) -> int:
        """How many combinations of axis values there are, constraints not counted."""
        return math.prod(len(axis.values) for axis in self.axes)
