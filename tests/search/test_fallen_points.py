"""Points that ran and later wanted memory, as when a full context is served."""

from __future__ import annotations

import random

import pytest
from search.toy_machine import SPACE, ToyMachine, explore, tell

from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy
from autofit.search.problem import Observation
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point

MEASURED = ToyMachine()


def fall(study: SearchStudy, point: Point) -> None:
    """Tell that a point that ran died of a full context."""
    tell(study, Observation(dict(point), None, lacked="device", seconds=20.0))


@pytest.mark.parametrize("short_mib", [1.0, 120.0, 500.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_search_goes_on_to_the_best_of_what_holds(short_mib, seed):
    """Each time the best one falls, the search goes on, and ends within 2% of the best that holds.

    Nothing is launched that needs at least as much as what fell.
    """
    study, rng = explore(MEASURED, 10, seed=seed), random.Random(seed)
    holding = ToyMachine(room_mib=MEASURED.needed_mib(study.ranked()[0].point) - short_mib)
    fallen: list[Point] = []
    while not holding.fits(best := study.ranked()[0].point):
        assert best not in fallen
        fallen.append(best)
        fall(study, best)
        course = SearchPolicy(study)
        for _ in range(6):
            if (step := course.next()) is None:
                break
            asked = step.proposal.point
            assert not any(_needs_more(asked, other) for other in fallen), (asked, fallen)
            tell(study, MEASURED.observe(asked, rng))

    assert fallen
    assert MEASURED.seconds(best) <= holding.best_s() / 0.98


def _needs_more(one: Point, other: Point) -> bool:
    """Whether a point takes at least as much as another by each of its settings."""
    pulls = MEASURED.needed_mib
    return all(
        pulls({**other, name: one[name]}) >= pulls(other)
        for name in (HOST_LAYERS_AXIS, "ubatch", "cache_type")
    )


def test_what_needs_as_much_falls_with_it():
    """Another batch or load mode takes no less of a device, so it is not ranked either."""
    study = SearchStudy(MEASURED.problem(), seed=0)
    rest = {"batch": 4096, "load_mode": "none", "ubatch": 2048, "cache_type": "f16"}
    point = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 11, **rest}
    alike, lighter = {**point, "batch": 2048}, {**point, "ubatch": 1024}
    for one in (point, alike, lighter):
        tell(study, MEASURED.observe(one, random.Random(0)))
    assert len(study.ranked()) == 3

    fall(study, point)

    assert [seen.point for seen in study.ranked()] == [lighter]
    heavier, with_more = {**alike, HOST_LAYERS_AXIS: 10}, {**point, HOST_LAYERS_AXIS: 12}
    assert all(study.is_ruled_out(one) for one in (point, alike, heavier))
    assert not any(study.is_ruled_out(one) for one in (lighter, with_more))
    walk = SearchPolicy(study).walk(alike)
    assert (walk.fits, walk.fails) == (None, 11)


def test_a_failure_beside_what_ran_takes_nothing_down():
    """What others held for a moment may have been why: only what ran and fell tells."""
    study = SearchStudy(MEASURED.problem(), seed=0)
    rest = next(SPACE.points())
    points = [{LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: n, **rest} for n in (8, 9, 10)]
    for one in points[:2]:
        tell(study, Observation(one, 5.0 + one[HOST_LAYERS_AXIS], seconds=15.0))

    fall(study, points[2])

    assert [seen.point for seen in study.ranked()] == points[:2]
