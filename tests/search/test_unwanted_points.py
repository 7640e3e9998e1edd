"""A search that goes on without some of its points, such as those of a value that is ruled out."""

from __future__ import annotations

import math
import random

import pytest
from search.toy_machine import SPACE, ToyMachine, explore, tell

from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy
from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point

MACHINE = ToyMachine()


def is_wide(point: Point) -> bool:
    """Whether a point has the wider of both KV types."""
    return point["cache_type"] == "f16"


def best_wide_s() -> float:
    """The fewest seconds of a point with the wider KV type that fits."""
    return min(
        MACHINE.seconds(point)
        for rest in SPACE.points()
        for hosted in range(25)
        if is_wide(rest)
        and MACHINE.fits(point := {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: hosted, **rest})
    )


@pytest.fixture(scope="module")
def study() -> SearchStudy:
    """A search whose best points are of a value that is ruled out after some launches."""
    found = explore(MACHINE, 10)
    assert not is_wide(found.ranked()[0].point)
    found.ask()  # what was asked for and not launched is no obstacle
    found.want_only(is_wide)
    return found


def _go_on(study: SearchStudy, most: int) -> list[Point]:
    """Launch what a course proposes, of its search alone."""
    course, rng = SearchPolicy(study), random.Random(0)
    asked = []
    while len(asked) < most and (step := course.next()) is not None:
        asked.append(step.proposal.point)
        seen = MACHINE.observe(step.proposal.point, rng)
        if step.asks_fit_only and seen.cost is not None:
            course.tell_fits(seen.point)
        else:
            tell(study, seen)
    return asked


def test_what_is_not_wanted_is_neither_proposed_nor_ranked(study) -> None:
    """Launches of the rest find the best of the rest, and the others stay in the study."""
    before = len(study.observations)
    asked = _go_on(study, 12)

    assert asked
    assert all(is_wide(point) for point in asked)
    ranked = study.ranked()
    assert all(is_wide(seen.point) for seen in ranked)
    assert MACHINE.seconds(ranked[0].point) <= best_wide_s() / 0.98
    assert any(not is_wide(seen.point) for seen in study.observations[:before])


def test_what_others_showed_saves_launches() -> None:
    """Going on finds the best of the rest in fewer launches than a search from nothing."""

    def launches_to_best(study: SearchStudy) -> int:
        rng = random.Random(0)
        for count in range(1, 30):
            tell(study, MACHINE.observe(study.ask().point, rng))
            ranked = study.ranked()
            if ranked and MACHINE.seconds(ranked[0].point) <= best_wide_s() / 0.98:
                return count
        raise AssertionError

    known = explore(MACHINE, 8)
    known.want_only(is_wide)
    fresh = SearchStudy(MACHINE.problem(), seed=0)
    fresh.want_only(is_wide)

    assert launches_to_best(known) < launches_to_best(fresh)


def test_a_launch_is_worth_it_until_a_wanted_point_has_run() -> None:
    """However good an unwanted point is, it says nothing against the others."""
    study = SearchStudy(MACHINE.problem(), seed=0)
    rng = random.Random(0)
    while not study.ranked():
        proposal = study.ask()
        tell(study, MACHINE.observe({**proposal.point, "cache_type": "q8_0"}, rng))
    study.want_only(is_wide)

    proposal = study.ask()

    assert proposal.expected_gain == math.inf
    assert proposal.why.startswith("nothing like it has run yet")


def test_a_course_that_is_over_is_opened_again() -> None:
    """A course that was over for want of gain goes on with other points."""
    study = SearchStudy(MACHINE.problem(), seed=0)
    course, rng = SearchPolicy(study), random.Random(0)
    for _ in range(60):
        step = course.next()
        if step is None:
            break
        seen = MACHINE.observe(step.proposal.point, rng)
        if step.asks_fit_only and seen.cost is not None:
            course.tell_fits(seen.point)
        else:
            tell(study, seen)
    assert course.is_over
    best = study.ranked()[0].point

    study.want_only(lambda point: point["cache_type"] != best["cache_type"])
    course.reopen()

    assert not course.is_over
    step = course.next()
    assert step is not None
    assert step.proposal.point["cache_type"] != best["cache_type"]
    assert int(step.proposal.point[HOST_LAYERS_AXIS]) >= 0


def test_whether_anything_is_left_is_known() -> None:
    """A space of which no value is wanted has no points."""
    problem: Problem = MACHINE.problem()
    study = SearchStudy(problem, seed=0)

    study.want_only(is_wide)
    assert study.problem.has_points
    study.want_only(lambda _: False)
    assert not study.problem.has_points
    assert problem.has_points
