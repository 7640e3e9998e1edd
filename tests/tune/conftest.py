"""One card with a task, its search problem and its finalists."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from session.task_sample import problem_of
from tune.whole_tune import one_card

from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS
from autofit.session.finalist import Finalist
from autofit.session.task import Task


@pytest.fixture(scope="module")
def about(tmp_path_factory) -> Task:
    """A task on one card that does not fit all experts, with two KV types."""
    return one_card(tmp_path_factory.mktemp("card"))


@pytest.fixture(scope="module")
def problem(about) -> Problem:
    """The search problem of the task."""
    return problem_of(about)


@pytest.fixture(scope="module")
def finalist(problem) -> Callable[..., Finalist]:
    """A function that returns a finalist with some host layers."""

    def of(host_layers: int, **values: str) -> Finalist:
        rest = next(p for p in problem.space.points() if p | values == p)
        point = {LAYOUT_AXIS: problem.layouts[0], HOST_LAYERS_AXIS: host_layers, **rest}
        return Finalist(problem.candidate_of(point), problem.layouts[0], point)

    return of
