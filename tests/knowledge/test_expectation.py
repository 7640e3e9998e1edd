"""Expected rates of candidates that were not launched."""

from __future__ import annotations

import pytest
from fakes.random_machine import random_case, random_machine

from autofit.knowledge.expectation import expected_rates
from autofit.knowledge.study_knowledge import learn_study
from autofit.trial.candidate import Candidate
from autofit.trial.trial import Trial
from benchmarks.search_machine import SearchMachine


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> SearchMachine:
    """A simulated machine with one card and a model."""
    made = random_machine(1, devices=1)
    return SearchMachine(random_case(1, machine=made), tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def trials(machine) -> list[Trial]:
    """Launches with three numbers of host layers that run."""
    problem = machine.problem(machine.memory_model())
    first = next(problem.space.points())
    found = []
    for host_layers in range(problem.most_host_layers, 0, -1):
        point = {"layout": problem.layouts[0], "host_expert_layers": host_layers, **first}
        candidate = problem.candidate_of(point)
        if candidate is not None and len(found) < 3:
            number = len(found) + 1
            trial = machine.launch(machine.simulation, candidate, number=number, phase="search")
            found += [trial] if trial.is_completed else []
    return found


def test_the_expected_rate_of_a_launched_candidate_is_what_it_had(machine, trials) -> None:
    """The interval contains the measured rate, and is narrower than a factor of 2."""
    study = learn_study(machine.task, trials, study_id="a", finished_at=0.0)
    assert study is not None
    (rates,) = expected_rates(machine.task, [study], [trials[1].candidate], now=0.0)
    assert rates is not None
    for rate, seconds in (
        (rates.pp_per_s, study.launches[1].prompt_s_per_token),
        (rates.tg_per_s, study.launches[1].generated_s_per_token),
    ):
        assert rate.low <= 1 / seconds <= rate.high
        assert rate.median == pytest.approx(1 / seconds, rel=0.3)


def test_a_layout_that_the_task_does_not_search_still_says_something(machine, trials) -> None:
    """An earlier study may have divided every layer, which a larger model has no room for."""
    study = learn_study(machine.task, trials, study_id="a", finished_at=0.0)
    assert study is not None
    first, *others = study.launches
    divided = first.model_copy(update={"is_divided": True})
    study = study.model_copy(update={"launches": (divided, *others)})
    (rates,) = expected_rates(machine.task, [study], [trials[1].candidate], now=0.0)
    assert rates is not None


def test_without_studies_nothing_is_expected(machine, trials) -> None:
    """Each candidate has None."""
    candidates = [trial.candidate for trial in trials]
    assert expected_rates(machine.task, [], candidates, now=0.0) == [None] * 3


def test_a_candidate_that_cannot_be_placed_has_no_expectation(machine, trials) -> None:
    """The others have one."""
    study = learn_study(machine.task, trials, study_id="a", finished_at=0.0)
    strange = Candidate({**trials[0].candidate.params, "override_tensor": "(=", "n_cpu_moe": 1})
    first, second = expected_rates(machine.task, [study], [strange, trials[0].candidate], now=0.0)
    assert second is not None
    assert first is None or first.pp_per_s.median > 0
