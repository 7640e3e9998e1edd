"""Earlier studies on the same machine shorten a search, and never make its result wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from search.toy_machine import PROMPT, ToyMachine, add_launch, explore

from autofit.search.cost_terms import build_design
from autofit.search.expected_search import expected_search
from autofit.search.optuna_study import SearchStudy
from autofit.search.past_studies import MachinePrior
from autofit.search.point_grid import PointGrid
from autofit.search.policy import LEAST_GAIN, SearchPolicy
from autofit.search.problem import DeviceWork, PastLaunch, PastStudy, Problem
from autofit.search.space import HOST_LAYERS_AXIS, Point


@dataclass(slots=True)
class SlowerMachine(ToyMachine):
    """The toy machine with a link, and system RAM, that are several times as slow."""

    factor: float = 4.0

    def parts(self, point: Point) -> tuple[float, float]:
        """Return the seconds per prompt token and per generated token, without noise."""
        prompt_s, predicted_s = ToyMachine.parts(self, point)
        return self.factor * prompt_s - (self.factor - 1) * 2.0 / PROMPT, self.factor * predicted_s


def past_study(machine: ToyMachine, similarity: float = 0.99) -> PastStudy:
    """Return what a search of a machine leaves for later ones."""
    problem = machine.problem()
    seen = [one for one in explore(machine, 14, seed=3).observations if one.cost is not None]
    launches = [
        PastLaunch(
            problem.space.params_of(one.point),
            DeviceWork((25.0,), (float(one.point[HOST_LAYERS_AXIS]),), 0, 0),
            one.prompt_s,
            one.predicted_s,
        )
        for one in seen
    ]
    return PastStudy(problem.traffic, problem.goal.requests, tuple(launches), similarity)


def with_past(machine: ToyMachine, *studies: PastStudy) -> Problem:
    """Return the problem of a machine with earlier studies."""
    return replace(machine.problem(), past_studies=studies)


def search(machine: ToyMachine, problem: Problem) -> tuple[SearchStudy, list[bool], list[float]]:
    """Search to the end; return when knowledge was contradicted, and the costs of launches."""
    study, rng = SearchStudy(problem, seed=0), random.Random(0)
    policy = SearchPolicy(study)
    contradicted, costs = [], []
    while (step := policy.next_step()) is not None and len(costs) < 40:
        seen = machine.observe(step.proposal.point, rng)
        add_launch(policy, step, seen)
        costs.append(machine.seconds(step.proposal.point) if seen.cost else float("inf"))
        contradicted.append(study.contradicts_knowledge)
    return study, contradicted, costs


def test_a_known_machine_needs_fewer_launches() -> None:
    """The search ends earlier than without knowledge, with a pick that is as good."""
    machine = ToyMachine(noise=0.01)

    _, _, without = search(machine, machine.problem())
    study, contradicted, with_ = search(machine, with_past(machine, past_study(machine)))

    assert len(with_) < len(without)
    assert machine.seconds(study.ranked()[0].point) <= machine.best_s() * 1.02
    assert not any(contradicted)


def test_the_first_guess_of_a_known_machine_is_near_the_best() -> None:
    """The first launch is within 5% of the best of the points that fit."""
    machine = ToyMachine(noise=0.01)
    proposal = SearchStudy(with_past(machine, past_study(machine)), seed=0).ask()
    assert proposal is not None
    assert machine.seconds(proposal.point) <= machine.best_s() * 1.05


def test_the_course_of_a_search_on_a_known_machine_is_expected() -> None:
    """The number of launches is about that of the search, and their costs are about right."""
    machine = ToyMachine(noise=0.01)
    problem = with_past(machine, past_study(machine))
    expected = expected_search(problem, seed=0, least_gain=LEAST_GAIN, most_launches=30)
    _, _, made = search(machine, problem)
    assert abs(len(expected) - len(made)) <= 4
    assert expected[0].cost == pytest.approx(machine.seconds(expected[0].point), rel=0.2)
    short = expected_search(problem, seed=0, least_gain=LEAST_GAIN, most_launches=1)
    assert [one.point for one in short] == [expected[0].point]


def test_wrong_knowledge_is_noticed_within_three_launches_and_not_used() -> None:
    """On a machine that became slower, the pick is as good as without knowledge."""
    machine = SlowerMachine(noise=0.01)
    problem = with_past(machine, past_study(ToyMachine(noise=0.01)))

    study, contradicted, costs = search(machine, problem)

    assert any(contradicted[:3])
    assert machine.seconds(study.ranked()[0].point) <= machine.best_s() * 1.02
    _, _, without = search(machine, machine.problem())
    assert len(costs) <= len(without) + 2


def test_without_studies_the_prior_is_the_usual_one() -> None:
    """The machine types are the same objects."""
    machine = ToyMachine()
    grid = PointGrid(machine.problem())
    design = build_design(grid, np.zeros((1, len(grid.axes)), dtype=np.int64), "prompt")
    assert MachinePrior(grid.problem).machine_types(design, "prompt") is design.machine_types


@pytest.mark.parametrize("part", ["prompt", "generation"])
def test_a_study_of_no_similarity_leaves_the_usual_prior(part) -> None:
    """With a similarity of 0, mean and covariance of each machine type are those of the prior."""
    machine = ToyMachine()
    problem = with_past(machine, past_study(machine, similarity=0.0))
    grid = PointGrid(problem)
    design = build_design(grid, np.zeros((1, len(grid.axes)), dtype=np.int64), part)

    types = MachinePrior(problem).machine_types(design, part)

    assert sum(one.weight for one in types) == pytest.approx(1.0)
    for known, usual in zip(types, design.machine_types, strict=False):
        assert known.mean == pytest.approx(usual.mean)
        assert known.covariance == pytest.approx(np.diag(usual.sd**2))


def test_knowledge_reduces_the_variance_and_never_increases_it() -> None:
    """The variance of an unknown after a study is at most that of the usual prior."""
    machine = ToyMachine()
    problem = with_past(machine, past_study(machine))
    grid = PointGrid(problem)
    design = build_design(grid, np.zeros((1, len(grid.axes)), dtype=np.int64), "prompt")

    known = MachinePrior(problem).machine_types(design, "prompt")[0]

    assert known.covariance is not None
    shares = np.diag(known.covariance) / design.machine_types[0].sd ** 2
    assert shares.max() <= 1 + 1e-9
    assert shares[design.names.index("level")] < 0.9
    assert np.linalg.eigvalsh(known.covariance).min() > 0


def test_settings_of_another_space_do_not_matter() -> None:
    """Launches with other values, or without a setting, still count as data."""
    machine = ToyMachine()
    study = past_study(machine)
    other = [
        replace(one, settings={"ubatch": 777, "batch": 4096, "new": True})
        for one in study.launches
    ]
    problem = with_past(machine, replace(study, launches=tuple(other)))
    assert SearchStudy(problem, seed=0).ask() is not None
