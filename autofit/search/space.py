"""The search space: parameters, the values tried for each, and constraints between them.

A point assigns a value to every axis. `Space.params_of` turns it into runtime parameters. The
axes `layout` and `host_expert_layers` replace the parameters that place layers on devices
(`model.placement.layout` makes those), so the search sees a name and a number instead of
strings such as `override_tensor`.
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

# The prefix of layouts that use one device; the name of the device follows it.
_SINGLE = "single"
# The layout that has a part of every layer on each device.
TENSOR_LAYOUT = "tensor"

_COMPARISONS: dict[str, Callable[[ParamValue, ParamValue], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}


def is_single_device(layout: ParamValue) -> bool:
    """Return whether a layout uses one device only."""
    return str(layout).startswith(_SINGLE)


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter and its values, in the order in which the search prefers them.

    `sets` names the runtime parameters that get the value, if they are not the axis's own name.
    """

    name: str
    values: tuple[ParamValue, ...]
    sets: tuple[str, ...] = ()

    @property
    def params(self) -> tuple[str, ...]:
        """The runtime parameters that a value of this axis sets."""
        return self.sets or (self.name,)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A comparison of two operands, each the name of an axis or a constant.

    A point without one of the axes satisfies it.
    """

    left: str
    comparison: str
    right: str

    def is_satisfied(self, point: Point) -> bool:
        """Return whether a point satisfies the constraint."""
        left, right = self._value(self.left, point), self._value(self.right, point)
        if left is None or right is None:
            return True
        try:
            return _COMPARISONS[self.comparison](left, right)
        except TypeError:
            return str(left) == str(right) if self.comparison == "==" else True

    @staticmethod
    def _value(operand: str, point: Point) -> ParamValue | None:
        if operand in point:
            return point[operand]
        try:
            return float(operand)
        except ValueError:
            return operand.strip("'\"") if operand[:1] in "'\"" else None


@dataclass(frozen=True, slots=True)
class Space:
    """Axes, layouts and constraints.

    Attributes:
        name: the name of its file.
        suits: the models for which it is made.
        axes: all axes but layout and host layers.
        layouts: the values of the layout axis. Without any, host layers are not searched.
        constraints: conditions that every point satisfies.
        pinned: runtime parameters with a fixed value.
        is_refused: returns whether the runtime refuses a combination of parameters.
    """

    name: str
    suits: Literal["moe", "dense", "any"]
    axes: tuple[Axis, ...]
    layouts: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    pinned: Params = field(default_factory=dict)
    is_refused: Callable[[Params], bool] = lambda _: False

    def axis(self, name: str) -> Axis | None:
        """Return the axis of that name, or None if there is none."""
        return next((axis for axis in self.axes if axis.name == name), None)

    def allows(self, point: Point) -> bool:
        """Return whether a point satisfies every constraint, and the runtime accepts it."""
        values = {**self.pinned, **point}
        is_allowed = all(constraint.is_satisfied(values) for constraint in self.constraints)
        return is_allowed and not self.is_refused(self.params_of(point))

    def params_of(self, point: Point) -> dict[str, ParamValue]:
        """Return the runtime parameters of a point, without those that place layers."""
        params: dict[str, ParamValue] = dict(self.pinned)
        for axis in self.axes:
            if axis.name in point and axis.name not in (LAYOUT_AXIS, HOST_LAYERS_AXIS):
                params.update(dict.fromkeys(axis.params, point[axis.name]))
        return params

    def pin(self, params: Params) -> Space:
        """Return the space with some runtime parameters fixed.

        If one of them places layers, layouts are not searched any more.
        """
        fixed = set(params)
        is_placed = bool(fixed & set(PLACEMENT_PARAMS))
        axes = tuple(axis for axis in self.axes if not fixed & {axis.name, *axis.params})
        # An axis may set several parameters. It keeps those that are not fixed.
        partial = tuple(
            Axis(axis.name, axis.values, tuple(p for p in axis.params if p not in fixed))
            for axis in self.axes
            if axis.name not in fixed and fixed & set(axis.params) and set(axis.params) - fixed
        )
        expanded = {
            name: value for given, value in params.items() for name in self._expanded(given)
        }
        return replace(
            self,
            axes=(*axes, *partial),
            layouts=() if is_placed else self.layouts,
            pinned={**self.pinned, **expanded},
        )

    def _expanded(self, name: str) -> tuple[str, ...]:
        axis = self.axis(name)
        return axis.params if axis else (name,)

    def with_values(self, name: str, keep: Callable[[ParamValue], bool]) -> Space:
        """Return the space with only some values of an axis.

        An axis without values is dropped.
        """
        axes = (
            replace(axis, values=tuple(v for v in axis.values if keep(v)))
            if axis.name == name
            else axis
            for axis in self.axes
        )
        return replace(self, axes=tuple(axis for axis in axes if axis.values))

    def points(self) -> Iterator[Point]:
        """Yield every allowed point, without layout and host layers."""
        names = [axis.name for axis in self.axes]
        for values in itertools.product(*(axis.values for axis in self.axes)):
            point = dict(zip(names, values, strict=True))
            if self.allows(point):
                yield point

    @property
    def size(self) -> int:
        """The number of combinations of values, before constraints."""
        return math.prod(len(axis.values) for axis in self.axes)
