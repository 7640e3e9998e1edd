"""Search studies: random draws for a misspecified model, and searches of eligible points only."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
from search.toy_machine import SPACE, ToyMachine, add_launch, explore

from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy
from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point

MACHINE = ToyMachine()


@dataclass(slots=True)
class RandomSpeeds(ToyMachine):
    """A machine on which every point has a random speed."""

    def parts(self, point: Point) -> tuple[float, float]:
        """Return random seconds per prompt token and per generated token."""
        rng = random.Random(repr(sorted(point.items())))
        prompt_s, predicted_s = ToyMachine.parts(self, point)
        return prompt_s * 10 ** rng.uniform(-2, 2), predicted_s * 10 ** rng.uniform(-2, 2)


def _launched(machine: ToyMachine, launches: int) -> list[tuple[Point, bool]]:
    """Return the points that a search launches, each with whether it was a random draw."""
    study, rng = SearchStudy(machine.problem(), seed=0), random.Random(0)
    found = []
    for _ in range(launches):
        proposal = study.ask()
        if proposal is None:
            break
        found.append((proposal.point, proposal.why.startswith("random draw")))
        study.add(machine.observe(proposal.point, rng))
    return found


def test_a_misspecified_model_hands_over_to_random_draws() -> None:
    """If the model explains nothing, TPE draws new points that probably fit."""
    machine = RandomSpeeds()

    launched = _launched(machine, 20)

    drawn = [point for point, is_drawn in launched if is_drawn]
    before = [point for point, is_drawn in launched if not is_drawn]
    assert len(drawn) >= 3
    assert sum(not machine.fits(point) for point in drawn) <= len(drawn) / 3
    assert all(point not in before[:6] for point in drawn)


def test_a_noisy_machine_does_not_make_the_model_misspecified() -> None:
    """Noise of 25% leads to no random draw."""
    launched = _launched(ToyMachine(noise=0.25), 16)

    assert not any(is_drawn for _, is_drawn in launched)


def test_a_drawn_point_closes_its_own_trial() -> None:
    """The observations are those of the proposed points, in their order."""
    machine = RandomSpeeds()
    study, rng = SearchStudy(machine.problem(), seed=1), random.Random(1)
    added = []
    for _ in range(14):
        proposal = study.ask()
        assert proposal is not None
        added.append(machine.observe(proposal.point, rng))
        study.add(added[-1])

    assert [seen.point for seen in study.observations] == [seen.point for seen in added]


def is_wide(point: Point) -> bool:
    """Return whether a point has the wider of both KV types."""
    return point["cache_type"] == "f16"


def best_wide_s() -> float:
    """Return the fewest seconds of a point with the wider KV type that fits."""
    return min(
        MACHINE.seconds(point)
        for rest in SPACE.points()
        for hosted in range(25)
        if is_wide(rest)
        and MACHINE.fits(point := {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: hosted, **rest})
    )


@pytest.fixture(scope="module")
def study() -> SearchStudy:
    """A search whose best points are not eligible any more after ten launches."""
    found = explore(MACHINE, 10)
    assert not is_wide(found.ranked()[0].point)
    found.ask()  # a proposal that was never launched does no harm
    found.restrict_to(is_wide)
    return found


def test_only_eligible_points_are_proposed_and_ranked(study) -> None:
    """A restricted search finds the best of the rest, and keeps the other observations."""
    before = len(study.observations)
    policy, rng = SearchPolicy(study), random.Random(0)
    launched = []
    while len(launched) < 12 and (step := policy.next_step()) is not None:
        launched.append(step.proposal.point)
        add_launch(policy, step, MACHINE.observe(step.proposal.point, rng))

    assert launched
    assert all(is_wide(point) for point in launched)
    ranked = study.ranked()
    assert all(is_wide(seen.point) for seen in ranked)
    assert MACHINE.seconds(ranked[0].point) <= best_wide_s() / 0.98
    assert any(not is_wide(seen.point) for seen in study.observations[:before])


def test_observations_of_other_points_save_launches() -> None:
    """A search with ineligible observations finds the best in fewer launches than without."""

    def launches_to_best(study: SearchStudy) -> int:
        rng = random.Random(0)
        for count in range(1, 30):
            study.add(MACHINE.observe(study.ask().point, rng))
            ranked = study.ranked()
            if ranked and MACHINE.seconds(ranked[0].point) <= best_wide_s() / 0.98:
                return count
        raise AssertionError

    known = explore(MACHINE, 8)
    known.restrict_to(is_wide)
    fresh = SearchStudy(MACHINE.problem(), seed=0)
    fresh.restrict_to(is_wide)

    assert launches_to_best(known) < launches_to_best(fresh)


def test_a_launch_is_worth_it_until_an_eligible_point_has_run() -> None:
    """The gain is infinite, however good ineligible points are."""
    study = SearchStudy(MACHINE.problem(), seed=0)
    rng = random.Random(0)
    while not study.ranked():
        proposal = study.ask()
        study.add(MACHINE.observe({**proposal.point, "cache_type": "q8_0"}, rng))
    study.restrict_to(is_wide)

    proposal = study.ask()

    assert proposal.expected_gain == math.inf


def test_a_search_that_ended_restarts_with_other_points() -> None:
    """A policy that is over proposes a launch again after other points became eligible."""
    study = SearchStudy(MACHINE.problem(), seed=0)
    policy, rng = SearchPolicy(study), random.Random(0)
    for _ in range(60):
        step = policy.next_step()
        if step is None:
            break
        add_launch(policy, step, MACHINE.observe(step.proposal.point, rng))
    assert policy.is_over
    best = study.ranked()[0].point

    study.restrict_to(lambda point: point["cache_type"] != best["cache_type"])
    policy.restart()

    assert not policy.is_over
    step = policy.next_step()
    assert step is not None
    assert step.proposal.point["cache_type"] != best["cache_type"]
    assert int(step.proposal.point[HOST_LAYERS_AXIS]) >= 0


def test_a_problem_knows_whether_any_point_is_eligible() -> None:
    """A space without an eligible value has no points."""
    problem: Problem = MACHINE.problem()
    study = SearchStudy(problem, seed=0)

    study.restrict_to(is_wide)
    assert study.problem.has_points
    study.restrict_to(lambda _: False)
    assert not study.problem.has_points
    assert problem.has_points
