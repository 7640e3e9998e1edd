"""Searches from their first launch to their last."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from search.toy_machine import LAYERS, SPACE, ToyMachine, explore, tell

from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy
from autofit.search.problem import Observation, Problem, Proposal
from autofit.search.search_goal import Goal, Limit
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.trial.metric import Metric
from autofit.trial.workload import Request


def _follow(machine: ToyMachine, *, seed: int = 0, most: int = 40) -> tuple[SearchStudy, list]:
    """A search followed to its end; the steps with what each launch showed."""
    study = SearchStudy(machine.problem(), seed=seed)
    course = SearchPolicy(study)
    rng = random.Random(seed)
    steps = []
    while len(steps) < most and (step := course.next()) is not None:
        seen = machine.observe(step.proposal.point, rng)
        if step.asks_fit_only and seen.cost is not None:
            course.tell_fits(seen.point)
        else:
            tell(study, seen)
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
def test_a_quiet_machine_is_solved_in_a_few_launches(machine: ToyMachine) -> None:
    """Within ten launches the pick is within 2% of the best, whatever is unlike the prior."""
    reached = []

    def watch(study: SearchStudy, seen: Observation) -> None:
        if seen.cost is not None:
            machine.error_mib = 0.0  # what a launch took corrects the estimates
        ranked = study.ranked()
        if ranked and machine.seconds(ranked[0].point) <= machine.best_s() / 0.98:
            reached.append(len(study.observations))

    explore(machine, 10, watch=watch)

    assert reached


def test_the_search_ends_by_itself_and_says_what_more_would_bring() -> None:
    """When no launch promises anything the course is over, long before all is tried."""
    _, steps = _follow(ToyMachine())

    assert 4 <= len(steps) < 25
    assert steps[-1][0].proposal.expected_gain < 0.05


def test_a_noisy_machine_does_not_keep_the_search_for_ever() -> None:
    """What noise hides is not worth launches."""
    _, steps = _follow(ToyMachine(noise=0.1))

    assert len(steps) < 40


def test_failures_are_few() -> None:
    """The estimate is trusted, so full devices are the exception."""
    _, steps = _follow(ToyMachine())

    assert sum(seen.cost is None for _, seen in steps) <= 2


def test_no_point_is_asked_twice_without_a_reason() -> None:
    """On a quiet machine every launch is another point."""
    _, steps = _follow(ToyMachine())

    asked = [tuple(sorted(step.proposal.point.items())) for step, _ in steps]
    assert len(asked) == len(set(asked))


def test_launches_before_anything_ran_look_for_the_boundary() -> None:
    """The first launches are for what fits, the others for what is fast."""
    _, steps = _follow(ToyMachine(error_mib=2500.0))

    ran = [seen.cost is not None for _, seen in steps]
    first = ran.index(True)
    assert {step.phase for step, _ in steps[: first + 1]} == {"boundary"}
    assert steps[first + 1][0].phase == "search"


def test_both_sides_of_the_winners_boundary_are_known_at_the_end() -> None:
    """One layer fewer than the best has failed, or is sure to."""
    machine = ToyMachine()
    study, _ = _follow(machine)

    best = study.ranked()[0].point
    fewer = {**best, HOST_LAYERS_AXIS: int(best[HOST_LAYERS_AXIS]) - 1}

    assert not machine.fits(fewer)
    assert study.chance(fewer) < 0.03


class _HostIsFaster(ToyMachine):
    """Whatever is in system RAM is faster, with prompts, too."""

    def parts(self, point) -> tuple[float, float]:
        hosted = int(point[HOST_LAYERS_AXIS])
        return (2.0 - 0.02 * hosted) / 4096, 0.012 - 0.0002 * hosted


def test_a_boundary_far_from_the_winner_is_asked_for_its_fit_only() -> None:
    """What surely fits gets no launch, and where it ends no speed is measured."""
    machine = _HostIsFaster(host_gain=True)
    study, steps = _follow(machine)

    closing = [(step, seen) for step, seen in steps if step.asks_fit_only]
    layers = [int(seen.point[HOST_LAYERS_AXIS]) for _, seen in closing]
    best = study.ranked()[0].point
    edge = min(n for n in range(LAYERS) if machine.fits({**best, HOST_LAYERS_AXIS: n}))
    assert steps[-len(closing) :] == closing
    assert layers == [edge, edge - 1]
    assert [seen.cost is not None for _, seen in closing] == [True, False]
    assert {step.phase for step, _ in closing} == {"boundary"}


def test_what_only_fits_is_known_to_the_walk_and_to_nothing_else() -> None:
    """It is no measurement: ranking and proposals are as they were."""
    machine = ToyMachine()
    study = explore(machine, 6)
    best = study.ranked()[0].point
    course = SearchPolicy(study)
    fits = {**best, HOST_LAYERS_AXIS: int(best[HOST_LAYERS_AXIS]) - 2}
    before = study.observations

    course.tell_fits(fits)
    walk = course.walk(best)

    assert walk.fits == fits[HOST_LAYERS_AXIS]
    assert study.observations == before
    assert fits not in [seen.point for seen in study.ranked()]


def test_a_neighbour_that_may_not_fit_is_measured() -> None:
    """The search held it for unlikely to run; where it runs it may be the best."""
    _, steps = _follow(ToyMachine(error_mib=-900.0))

    closing = [step for step, _ in steps if step.proposal.why.startswith("does ")]
    assert closing
    assert not any(step.asks_fit_only for step in closing)


def test_a_limit_is_kept() -> None:
    """A winner that misses the limit is none, however fast it is."""
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
def test_a_limit_that_nothing_keeps_ends_no_search(metric: Metric, most: float) -> None:
    """The best by the objective is found all the same, and told as what misses the limit."""
    requests = (Request(4096, 257),)
    machine = ToyMachine(goal=Goal("request_s", requests, (Limit(metric, most),)))

    study, steps = _follow(machine)

    assert 4 < len(steps) < 40
    assert machine.seconds(study.ranked()[0].point) <= machine.best_s() / 0.98


@pytest.mark.parametrize("objective", ["pp", "tg", "ttft"])
def test_every_objective_finds_its_own_best(objective: str) -> None:
    """The part that counts decides, whatever the other does."""
    machine = ToyMachine(goal=Goal(objective, (Request(4096, 257),)))
    part = 1 if objective == "tg" else 0

    def observe(point, rng) -> Observation:
        seen = ToyMachine.observe(machine, point, rng)
        value = seen.predicted_s if part else seen.prompt_s
        cost = value if objective != "ttft" or value is None else value * 4096
        return Observation(point, cost, seen.lacked, 10.0, seen.prompt_s, seen.predicted_s)

    study = SearchStudy(machine.problem(), seed=0)
    rng = random.Random(0)
    for _ in range(10):
        proposal = study.ask()
        if proposal is None:
            break
        tell(study, observe(proposal.point, rng))

    best = machine.parts(study.ranked()[0].point)[part]
    known = [machine.parts(seen.point)[part] for seen in study.ranked()]
    assert best == pytest.approx(min(known))


def test_a_resumed_search_goes_on_as_it_would_have() -> None:
    """A study rebuilt from what was told proposes the same point."""
    machine = ToyMachine()
    study = explore(machine, 6)
    again = SearchStudy(machine.problem(), seed=0)
    for seen in study.observations:
        tell(again, seen)

    first, second = study.ask(), again.ask()

    assert first is not None
    assert second is not None
    assert first.point == second.point
    assert first.expected_gain == pytest.approx(second.expected_gain, rel=0.02)


def test_an_outlier_is_not_believed_and_tried_again() -> None:
    """One launch that a neighbour slowed down threefold does not lose the best point."""
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
        tell(again, seen)

    asked = []
    for _ in range(4):
        proposal = again.ask()
        assert proposal is not None
        asked.append(proposal.point)
        tell(again, machine.observe(proposal.point, random.Random(1)))

    assert best in asked
    assert machine.seconds(again.ranked()[0].point) <= machine.best_s() / 0.98


def test_a_value_that_is_refused_is_left_alone() -> None:
    """A setting that fails for a reason other than memory is soon believed to."""
    machine = ToyMachine()
    study = SearchStudy(machine.problem(), seed=0)
    rng = random.Random(0)
    refused = 0
    for _ in range(14):
        proposal = study.ask()
        if proposal is None:
            break
        if proposal.point["load_mode"] == "mmap":
            refused += 1
            study.tell(proposal.point, None, seconds=1.0)
        else:
            tell(study, machine.observe(proposal.point, rng))

    assert refused <= 4


def test_a_search_without_any_room_ends() -> None:
    """Where nothing fits the likeliest are tried, and then no more."""
    machine = ToyMachine(room_mib=500.0)
    study = SearchStudy(machine.problem(), seed=0)
    course = SearchPolicy(study)
    launches = 0
    while launches < 60 and (step := course.next()) is not None:
        launches += 1
        tell(study, machine.observe(step.proposal.point, random.Random(0)))

    assert study.ranked() == []
    assert launches < 30


def test_a_problem_of_one_point_asks_for_it_and_ends() -> None:
    """A space in which everything is fixed has one launch in it."""
    axes = {axis.name: axis.values[0] for axis in SPACE.axes}
    machine = ToyMachine()
    whole = machine.problem()
    problem = Problem(
        SPACE.pin(axes), (), 0, whole.candidate_of, lambda _: None, whole.goal, whole.traits
    )
    study = SearchStudy(problem, seed=0)

    first = study.ask()
    assert first is not None
    assert first.point == {}
    study.tell({}, 1.0)

    assert study.ask() is None


class _Hopeful:
    """Promises the same of every point, whatever the launches show."""

    def __init__(self, promise: float) -> None:
        self._promise = promise

    def propose(self, problem: Problem, observations: Sequence[Observation]) -> Proposal | None:
        """The next point of the space."""
        point = list(problem.space.points())[len(observations)]
        place = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 20}
        return Proposal({**place, **point}, self._promise)

    def chance(self, problem: Problem, observations: Sequence[Observation], point: Point) -> float:
        """All fit."""
        return 1.0

    def ranked(self, problem: Problem, observations: Sequence[Observation]) -> list[Observation]:
        """By what was measured."""
        return sorted(observations, key=lambda seen: seen.cost or math.inf)

    def doubtful(self, problem: Problem, observations: Sequence[Observation]) -> list[Observation]:
        """None of them."""
        return []


def _launches(promise: float, *, told: int = 0) -> tuple[int, SearchPolicy]:
    """How many a course with that promise makes, at most 24; the first point is the best."""
    machine = ToyMachine(room_mib=20000.0)
    study = SearchStudy(machine.problem(), _Hopeful(promise), seed=0)
    points = list(machine.problem().space.points())

    def tell_next(point: Point) -> None:
        rest = {name: value for name, value in point.items() if name in points[0]}
        study.tell(point, 1.0 + points.index(rest))

    for point in points[:told]:
        tell_next({LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 20, **point})
    course, launches = SearchPolicy(study), 0
    while launches < 24 - told and (step := course.next()) is not None and not course.is_over:
        tell_next(step.proposal.point)
        launches += 1
    return launches, course


def test_small_promises_that_are_long_not_kept_end_a_search() -> None:
    """Twelve launches after the best one a promise of 0.3% is not believed any more."""
    launches, course = _launches(0.003)

    assert launches == 13
    assert course.has_stalled
    assert course.declined is not None
    assert course.declined.expected_gain > course.least_gain


def test_large_promises_are_looked_into_however_long() -> None:
    """A search does not give up what may bring many times the least gain."""
    launches, course = _launches(0.02)

    assert launches == 24
    assert not course.has_stalled


def test_a_search_that_knows_of_many_launches_looks_for_itself() -> None:
    """What was launched for another goal does not count as looking in vain."""
    launches, course = _launches(0.003, told=16)

    assert launches == 8
    assert not course.has_stalled
