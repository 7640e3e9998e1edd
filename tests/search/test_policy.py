"""Searches from their first launch to their last."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from search.toy_machine import LAYERS, SPACE, ToyMachine, add_launch, explore

from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy
from autofit.search.problem import Goal, Limit, Observation, Problem, Proposal
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.trial.metric import Metric
from autofit.trial.workload import Request


def _follow(machine: ToyMachine, *, seed: int = 0, most: int = 40) -> tuple[SearchStudy, list]:
    """Follow a search to its end; return its study, and the steps with their observations."""
    study = SearchStudy(machine.problem(), seed=seed)
    policy = SearchPolicy(study)
    rng = random.Random(seed)
    steps = []
    while len(steps) < most and (step := policy.next_step()) is not None:
        seen = machine.observe(step.proposal.point, rng)
        add_launch(policy, step, seen)
        steps.append((step, seen))
    return study, steps


@pytest.mark.parametrize(
    "machine",
    [
        ToyMachine(),
        ToyMachine(room_mib=4000.0),
        ToyMachine(error_mib=900.0),
        ToyMachine(error_mib=-900.0),
        ToyMachine(host_gain=True),
        ToyMachine(has_estimates=False),
    ],
    ids=["plain", "small", "optimistic", "pessimistic", "host is faster", "no estimates"],
)
def test_a_machine_without_noise_is_solved_in_ten_launches(machine: ToyMachine) -> None:
    """Within ten launches the pick is within 2% of the best, also if predictions are wrong."""
    reached = []

    def watch(study: SearchStudy, seen: Observation) -> None:
        if seen.cost is not None:
            machine.error_mib = 0.0  # launches calibrate the predictions
        ranked = study.ranked()
        if ranked and machine.seconds(ranked[0].point) <= machine.best_s() / 0.98:
            reached.append(len(study.observations))

    explore(machine, 10, watch=watch)

    assert reached


def test_the_search_ends_by_itself() -> None:
    """The search ends long before every point was launched."""
    _, steps = _follow(ToyMachine())

    assert 4 <= len(steps) < 25
    assert steps[-1][0].proposal.expected_gain < 0.05


def test_the_search_of_a_noisy_machine_ends() -> None:
    """Gains below the noise are not worth launches."""
    _, steps = _follow(ToyMachine(noise=0.1))

    assert len(steps) < 40


def test_few_launches_fail() -> None:
    """With correct predictions at most two launches are out of memory."""
    _, steps = _follow(ToyMachine())

    assert sum(seen.cost is None for _, seen in steps) <= 2


def test_no_point_is_launched_twice_without_noise() -> None:
    """Every launch is of another point."""
    _, steps = _follow(ToyMachine())

    launched = [tuple(sorted(step.proposal.point.items())) for step, _ in steps]
    assert len(launched) == len(set(launched))


def test_launches_until_something_ran_are_of_the_boundary_phase() -> None:
    """The first launches have the phase boundary, the next ones search."""
    _, steps = _follow(ToyMachine(error_mib=2500.0))

    ran = [seen.cost is not None for _, seen in steps]
    first = ran.index(True)
    assert {step.phase for step, _ in steps[: first + 1]} == {"boundary"}
    assert steps[first + 1][0].phase == "search"


def test_both_sides_of_the_winners_boundary_are_known() -> None:
    """One host layer less than the best has failed, or is certain to."""
    machine = ToyMachine()
    study, _ = _follow(machine)

    best = study.ranked()[0].point
    fewer = {**best, HOST_LAYERS_AXIS: int(best[HOST_LAYERS_AXIS]) - 1}

    assert not machine.fits(fewer)
    assert study.success_probability(fewer) < 0.03


class _HostIsFaster(ToyMachine):
    """A machine on which prompts and generation are faster with more layers in system RAM."""

    def parts(self, point) -> tuple[float, float]:
        hosted = int(point[HOST_LAYERS_AXIS])
        return (2.0 - 0.02 * hosted) / 4096, 0.012 - 0.0002 * hosted


def test_a_boundary_far_from_the_winner_is_tested_for_its_fit_only() -> None:
    """Points that are certain to fit get no launch, and at the boundary no speed is measured."""
    machine = _HostIsFaster(host_gain=True)
    study, steps = _follow(machine)

    closing = [(step, seen) for step, seen in steps if step.fit_only]
    layers = [int(seen.point[HOST_LAYERS_AXIS]) for _, seen in closing]
    best = study.ranked()[0].point
    edge = min(n for n in range(LAYERS) if machine.fits({**best, HOST_LAYERS_AXIS: n}))
    assert steps[-len(closing) :] == closing
    assert layers == [edge, edge - 1]
    assert [seen.cost is not None for _, seen in closing] == [True, False]
    assert {step.phase for step, _ in closing} == {"boundary"}


def test_a_fitting_point_counts_for_the_boundary_only() -> None:
    """It is no observation, so the ranking does not change."""
    machine = ToyMachine()
    study = explore(machine, 6)
    best = study.ranked()[0].point
    policy = SearchPolicy(study)
    fits = {**best, HOST_LAYERS_AXIS: int(best[HOST_LAYERS_AXIS]) - 2}
    before = study.observations

    policy.add_fitting(fits)
    boundary = policy.boundary_of(best)

    assert boundary.fits == fits[HOST_LAYERS_AXIS]
    assert study.observations == before
    assert fits not in [seen.point for seen in study.ranked()]


def test_a_neighbour_that_may_fit_is_measured() -> None:
    """A boundary launch measures its speed if the point is not certain to fit."""
    _, steps = _follow(ToyMachine(error_mib=-900.0))

    closing = [step for step, _ in steps if step.proposal.expected_gain == 0.0]
    assert closing
    assert not any(step.fit_only for step in closing)


def test_a_limit_is_respected() -> None:
    """The winner respects the limit, if any point does."""
    requests = (Request(4096, 257),)
    free = ToyMachine(host_gain=True, goal=Goal("pp", requests))
    fast = min(free.parts(o.point)[1] for o in explore(free, 8).ranked())
    limit = Limit("tg", fast * 1.02)
    machine = ToyMachine(goal=Goal("request_s", requests, (limit,)))

    study = explore(machine, 12)

    best = study.ranked()[0].point
    possible = [
        machine.parts({LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: n, **rest})[1]
        for rest in SPACE.points()
        for n in range(LAYERS + 1)
        if machine.fits({LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: n, **rest})
    ]
    if min(possible) <= limit.most:
        assert machine.parts(best)[1] <= limit.most


@pytest.mark.parametrize(("metric", "most"), [("ttft", 0.001), ("tg", 0.0001)])
def test_a_limit_that_no_point_respects_is_ignored(metric: Metric, most: float) -> None:
    """The best point by the objective is found."""
    requests = (Request(4096, 257),)
    machine = ToyMachine(goal=Goal("request_s", requests, (Limit(metric, most),)))

    study, steps = _follow(machine)

    assert 3 < len(steps) < 40
    assert machine.seconds(study.ranked()[0].point) <= machine.best_s() / 0.98


@pytest.mark.parametrize("objective", ["pp", "tg", "ttft"])
def test_every_objective_finds_its_own_best(objective: str) -> None:
    """The best point is that of the metric."""
    machine = ToyMachine(goal=Goal(objective, (Request(4096, 257),)))
    part = 1 if objective == "tg" else 0

    def observe(point, rng) -> Observation:
        seen = ToyMachine.observe(machine, point, rng)
        value = seen.predicted_s if part else seen.prompt_s
        cost = value if objective != "ttft" or value is None else value * 4096
        return Observation(
            point, cost, seen.exhausted_memory, 10.0, seen.prompt_s, seen.predicted_s
        )

    study = SearchStudy(machine.problem(), seed=0)
    rng = random.Random(0)
    for _ in range(10):
        proposal = study.ask()
        if proposal is None:
            break
        study.add(observe(proposal.point, rng))

    best = machine.parts(study.ranked()[0].point)[part]
    known = [machine.parts(seen.point)[part] for seen in study.ranked()]
    assert best == pytest.approx(min(known))


def test_a_resumed_search_proposes_the_same_point() -> None:
    """A study with the same observations has the same proposal."""
    machine = ToyMachine()
    study = explore(machine, 6)
    again = SearchStudy(machine.problem(), seed=0)
    for seen in study.observations:
        again.add(seen)

    first, second = study.ask(), again.ask()

    assert first is not None
    assert second is not None
    assert first.point == second.point
    assert first.expected_gain == pytest.approx(second.expected_gain, rel=0.02)


def test_a_slow_outlier_is_launched_again() -> None:
    """A disturbance that makes one launch three times as slow does not lose the best point."""
    machine = ToyMachine()
    study = explore(machine, 9)
    best = study.ranked()[0].point
    rest = [seen for seen in study.observations if seen.point != best]
    disturbed = machine.observe(best, random.Random(0))
    slow = Observation(
        best, disturbed.cost * 3, None, 40.0, disturbed.prompt_s * 3, disturbed.predicted_s * 3
    )
    again = SearchStudy(machine.problem(), seed=0)
    for seen in [*rest, slow]:
        again.add(seen)

    launched = []
    for _ in range(4):
        proposal = again.ask()
        assert proposal is not None
        launched.append(proposal.point)
        again.add(machine.observe(proposal.point, random.Random(1)))

    assert best in launched
    assert machine.seconds(again.ranked()[0].point) <= machine.best_s() / 0.98


def test_a_rejected_value_is_avoided() -> None:
    """A value that fails for another reason than memory is proposed a few times only."""
    machine = ToyMachine()
    study = SearchStudy(machine.problem(), seed=0)
    rng = random.Random(0)
    rejected = 0
    for _ in range(14):
        proposal = study.ask()
        if proposal is None:
            break
        if proposal.point["load_mode"] == "mmap":
            rejected += 1
            study.add(Observation(proposal.point, None, seconds=1.0))
        else:
            study.add(machine.observe(proposal.point, rng))

    assert rejected <= 4


def test_a_search_on_a_full_device_ends() -> None:
    """If nothing fits, the likeliest points are launched, and then the search ends."""
    machine = ToyMachine(room_mib=500.0)
    study = SearchStudy(machine.problem(), seed=0)
    policy = SearchPolicy(study)
    launches = 0
    while launches < 60 and (step := policy.next_step()) is not None:
        launches += 1
        study.add(machine.observe(step.proposal.point, random.Random(0)))

    assert study.ranked() == []
    assert launches < 30


def test_a_problem_of_one_point_has_one_proposal() -> None:
    """A space in which every value is pinned needs one launch."""
    axes = {axis.name: axis.values[0] for axis in SPACE.axes}
    machine = ToyMachine()
    whole = machine.problem()
    problem = Problem(
        SPACE.pin(axes), (), 0, whole.candidate_of, lambda _: None, whole.goal, whole.traffic
    )
    study = SearchStudy(problem, seed=0)

    first = study.ask()
    assert first is not None
    assert first.point == {}
    study.add(Observation({}, 1.0))

    assert study.ask() is None


class _ConstantGain:
    """A proposer that expects the same gain of every point, whatever was observed."""

    def __init__(self, gain: float) -> None:
        self._gain = gain

    def propose(
        self, problem: Problem, observations: Sequence[Observation], pending: Sequence[Point]
    ) -> Proposal | None:
        """Return the next point of the space."""
        point = list(problem.space.points())[len(observations)]
        return Proposal({LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 20, **point}, self._gain)

    def success_probability(self, problem: Problem, observations, point: Point) -> float:
        """Return 1 for every point."""
        return 1.0

    def ranked(self, problem: Problem, observations: Sequence[Observation]) -> list[Observation]:
        """Return the observations by their cost."""
        return sorted(observations, key=lambda seen: seen.cost or math.inf)

    def outliers(self, problem: Problem, observations) -> list[Observation]:
        """Return no outliers."""
        return []


def _launches(gain: float, *, earlier: int = 0) -> tuple[int, SearchPolicy]:
    """Return the launches, at most 24, of a policy with that expected gain; the first is best.

    `earlier` of them are launches of another search.
    """
    machine = ToyMachine(room_mib=20000.0)
    study = SearchStudy(machine.problem(), _ConstantGain(gain), seed=0)
    points = list(machine.problem().space.points())

    def add(point: Point) -> None:
        rest = {name: value for name, value in point.items() if name in points[0]}
        study.add(Observation(point, 1.0 + points.index(rest)))

    for point in points[:earlier]:
        add({LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 20, **point})
    policy, launches = SearchPolicy(study), 0
    most = 24 - earlier
    while launches < most and (step := policy.next_step()) is not None and not policy.is_over:
        add(step.proposal.point)
        launches += 1
    return launches, policy


def test_small_expected_gains_end_a_search() -> None:
    """After eleven launches an expected gain slightly above the least gain is not enough."""
    launches, policy = _launches(0.012)

    assert launches == 11
    assert policy.has_stalled
    assert policy.declined is not None
    assert policy.declined.expected_gain > policy.least_gain


def test_larger_expected_gains_allow_more_launches() -> None:
    """The larger the expected gain, the more launches a search makes."""
    launches, policy = _launches(0.02)

    assert launches == 14
    assert policy.has_stalled


def test_launches_of_an_earlier_search_do_not_end_a_search() -> None:
    """Launches for another goal do not count."""
    launches, policy = _launches(0.012, earlier=16)

    assert launches == 8
    assert not policy.has_stalled
