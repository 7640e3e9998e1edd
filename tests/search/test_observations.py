"""Launch histories: points that ran and failed a later proof, and suspected spills."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from search.toy_machine import SPACE, ToyMachine, explore

from autofit.search.observations import LaunchHistory
from autofit.search.optuna_study import SearchStudy
from autofit.search.point_grid import PointGrid
from autofit.search.policy import SearchPolicy
from autofit.search.problem import Observation
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Point

MEASURED = ToyMachine()
REST = {"batch": 4096, "load_mode": "none", "ubatch": 2048, "cache_type": "f16"}


def fail_proof(study: SearchStudy, point: Point) -> None:
    """Add that a point that ran was out of device memory at full context."""
    study.add(Observation(dict(point), None, "device", seconds=20.0))


@pytest.mark.parametrize("short_mib", [1.0, 120.0, 500.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_search_continues_to_the_best_point_that_passes_its_proof(short_mib, seed):
    """After each failed proof the search continues, and no dominated point is launched."""
    study, rng = explore(MEASURED, 10, seed=seed), random.Random(seed)
    proving = ToyMachine(room_mib=MEASURED.needed_mib(study.ranked()[0].point) - short_mib)
    failed: list[Point] = []
    while not proving.fits(best := study.ranked()[0].point):
        assert best not in failed
        failed.append(best)
        fail_proof(study, best)
        policy = SearchPolicy(study)
        for _ in range(6):
            if (step := policy.next_step()) is None:
                break
            point = step.proposal.point
            assert not any(_needs_at_least(point, other) for other in failed), (point, failed)
            study.add(MEASURED.observe(point, rng))

    assert failed
    assert MEASURED.seconds(best) <= proving.best_s() / 0.98


def _needs_at_least(one: Point, other: Point) -> bool:
    """Return whether each setting of a point needs at least as much memory as another's."""
    needed_mib = MEASURED.needed_mib
    return all(
        needed_mib({**other, name: one[name]}) >= needed_mib(other)
        for name in (HOST_LAYERS_AXIS, "ubatch", "cache_type")
    )


def test_a_failed_proof_rules_out_points_that_need_as_much():
    """Another batch or load mode needs the same device memory, so it is not ranked either."""
    study = SearchStudy(MEASURED.problem(), seed=0)
    point = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 11, **REST}
    equal, lighter = {**point, "batch": 2048}, {**point, "ubatch": 1024}
    for one in (point, equal, lighter):
        study.add(MEASURED.observe(one, random.Random(0)))
    assert len(study.ranked()) == 3

    fail_proof(study, point)

    assert [seen.point for seen in study.ranked()] == [lighter]
    heavier, with_more = {**equal, HOST_LAYERS_AXIS: 10}, {**point, HOST_LAYERS_AXIS: 12}
    assert all(study.is_ruled_out(one) for one in (point, equal, heavier))
    assert not any(study.is_ruled_out(one) for one in (lighter, with_more))
    boundary = SearchPolicy(study).boundary_of(equal)
    assert (boundary.fits, boundary.fails) == (None, 11)


def test_a_failure_of_another_point_disproves_nothing():
    """Another program may have caused it, so only points that ran can fail their proof."""
    study = SearchStudy(MEASURED.problem(), seed=0)
    rest = next(SPACE.points())
    points = [{LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: n, **rest} for n in (8, 9, 10)]
    for one in points[:2]:
        study.add(Observation(one, 5.0 + one[HOST_LAYERS_AXIS], seconds=15.0))

    fail_proof(study, points[2])

    assert [seen.point for seen in study.ranked()] == points[:2]


@pytest.mark.parametrize(
    ("change", "is_spill"),
    [
        ({HOST_LAYERS_AXIS: 8}, True),
        ({"ubatch": 4096}, True),
        ({HOST_LAYERS_AXIS: 12}, False),
        ({HOST_LAYERS_AXIS: 4}, False),
        ({"load_mode": "mmap", HOST_LAYERS_AXIS: 8}, False),
    ],
)
def test_a_sharp_loss_with_more_device_memory_is_a_suspected_spill(change, is_spill):
    """A slow launch counts as a spill if a near point that needs less memory was much faster."""
    grid = PointGrid(MEASURED.problem())
    point = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 10, **REST}
    slow = {**point, **change}

    history = LaunchHistory(grid, [Observation(point, 5.0), Observation(slow, 9.0)])

    assert [one.observation.point for one in history.spilled] == ([slow] if is_spill else [])
    assert len(history.ran) + len(history.spilled) == 2
    assert np.shape(history.out_of_memory("device")) == (0, 6)


def test_a_loss_with_other_threads_is_no_suspected_spill():
    """Threads alone can make a launch many times slower, so its speed stays data."""
    problem = MEASURED.problem()
    space = replace(SPACE, axes=(*SPACE.axes, Axis("threads", (8, 7))))
    grid = PointGrid(replace(problem, space=space))
    point = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 10, **REST, "threads": 7}
    slow = {**point, HOST_LAYERS_AXIS: 9, "threads": 8}

    history = LaunchHistory(grid, [Observation(point, 5.0), Observation(slow, 25.0)])

    assert not history.spilled
