"""The work of devices: equal placements are one candidate, and each kind is tried early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from search.two_devices import LAYERS, observe, problem

from autofit.search.kernel import Kernel
from autofit.search.optuna_study import SearchStudy
from autofit.search.point_grid import PointGrid
from autofit.search.policy import SearchPolicy
from autofit.search.problem import DeviceWork
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.trial.candidate import Candidate


def _point(layout: str, host_layers: int, ubatch: int = 2048) -> Point:
    return {LAYOUT_AXIS: layout, HOST_LAYERS_AXIS: host_layers, "ubatch": ubatch}


@pytest.fixture(scope="module")
def launched():
    """The points of a whole search, and its study."""
    study = SearchStudy(problem(), seed=0)
    policy = SearchPolicy(study)
    while (step := policy.next_step()) is not None:
        study.add(observe(step.proposal.point))
    return [one.point for one in study.observations], study


def test_other_devices_are_launched_before_fine_tuning(launched):
    """The second launch is on other devices, since the first says little about them."""
    points, _ = launched
    found = problem()
    devices = [found.candidate_of(point).params["devices"] for point in points[:2]]

    assert sorted(devices) == ["A,B", "B"]


def test_the_fast_device_alone_is_found(launched):
    """More host layers on the fast device are better than fewer on both."""
    _, study = launched

    assert study.ranked()[0].point[LAYOUT_AXIS] == "single:B"


def test_equal_placements_are_launched_as_one_point(launched):
    """Layouts that give the same candidate do not each get a launch."""
    points, study = launched
    found = problem()
    rows = {}
    for point in points:
        key = found.candidate_of(point).key
        rows.setdefault(key, set()).add(tuple(point.items()))

    assert all(len(same) == 1 for same in rows.values())
    assert len(study.observations) <= 16


def test_work_does_not_depend_on_the_name_of_a_layout():
    """Layouts that place layers equally have equal work, also between computed placements."""
    grid = PointGrid(problem())
    rows = np.array(
        [grid.row_of(_point(layout, count)) for count in range(LAYERS + 1)
         for layout in ("halves", "both")]
    )  # fmt: skip
    work = grid.work.at(rows)

    assert np.allclose(work.features[::2], work.features[1::2])
    assert np.allclose(work.layers.sum(axis=1), LAYERS)


def test_learned_work_is_exact():
    """The work of a launched point is that of its candidate, and not interpolated."""
    grid = PointGrid(problem())
    row = np.array([grid.row_of(_point("halves", 10))])
    grid.work.learn(row[0].tolist())

    assert grid.work.at(row).host_layers.tolist() == [[10.0, 0.0]]


def test_the_kernel_compares_devices():
    """Equal placements are correlated fully, those on different devices hardly."""
    grid = PointGrid(problem())
    points = [("halves", 8), ("both", 8), ("single:A", 8), ("single:B", 8)]
    rows = np.array([grid.row_of(_point(*point)) for point in points])
    matrix = Kernel(grid).matrix(rows, rows)

    assert matrix[0, 1] > 0.99
    assert matrix[2, 3] < matrix[0, 2] < 0.9


@pytest.mark.parametrize(
    ("one", "other", "is_copy"),
    [
        (("halves", 8), ("both", 8), True),
        (("halves", 8), ("both", 9), True),
        (("halves", 8), ("both", 11), False),
        (("single:A", 8), ("single:B", 8), False),
        (("single:B", 8, 2048), ("single:B", 8, 1024), False),
    ],
)
def test_near_copies_differ_by_at_most_a_layer(one, other, is_copy):
    """Other settings are equal, and so are the devices of all layers but one."""
    grid = PointGrid(problem())

    assert grid.is_near_copy(_point(*one), _point(*other)) is is_copy


def _covers(one: Point, other: Point) -> bool:
    """Return whether a point needs at least as much device memory as another one."""
    grid = PointGrid(problem())
    rows = [grid.row_of(point) for point in (one, other)]
    for row in rows:
        grid.work.learn(row)
    return bool(grid.needing_at_least("device", np.array(rows[:1]), np.array(rows[1]))[0])


def test_a_failure_rules_out_equal_and_larger_placements_of_any_layout():
    """The layers on each device are compared, and not the name of the layout."""
    failed = _point("halves", 10)

    assert _covers(_point("both", 10), failed)
    assert _covers(_point("both", 8), failed)
    assert not _covers(_point("both", 11), failed)
    assert not _covers(_point("both", 8, ubatch=1024), failed)
    assert not _covers(_point("single:B", 8), failed)


def test_a_failure_does_not_rule_out_a_layout_that_moves_layers():
    """A layout that gives a device fewer layers when more are not in system RAM may fit."""

    def shifting(candidate: Candidate) -> DeviceWork:
        host_layers = candidate.get_int("n_cpu_moe", 0)
        first = 8 if host_layers < 10 else 12
        return DeviceWork((first, LAYERS - first), (0, host_layers), 0, 0)

    moved = replace(problem(), work_of=shifting)
    grid = PointGrid(moved)
    rows = [grid.row_of(_point("halves", count)) for count in (9, 10)]
    for row in rows:
        grid.work.learn(row)

    assert not grid.needing_at_least("device", np.array(rows[:1]), np.array(rows[1])).any()
