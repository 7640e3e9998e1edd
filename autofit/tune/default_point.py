"""The point of the search space that is the runtime's own choice, where there is one."""

from __future__ import annotations

from autofit.runtime.discovery.found_runtime import format_value
from autofit.search.problem import Problem
from autofit.search.space import Point
from autofit.session.task import Task
from autofit.trial.candidate import ParamValue
from autofit.trial.trial import Trial


def default_point(task: Task, problem: Problem, baseline: Trial) -> Point | None:
    """The values that the baseline ran with, None where one of them is not in the space.

    Where layers are placed it has no point: the runtime's own fit places them its own way.
    """
    if problem.searches_layouts or baseline.measurement is None:
        return None
    applied = {
        **task.runtime.dialect.defaults,
        "threads": task.cores.physical,
        **baseline.measurement.applied,
    }
    point: dict[str, ParamValue] = {}
    for axis in problem.axes:
        told = {format_value(applied[name]) for name in axis.params if name in applied}
        values = [value for value in axis.values if told == {format_value(value)}]
        if len(values) != 1:
            return None
        point[axis.name] = values[0]
    return point if task.space.allows(point) else None
