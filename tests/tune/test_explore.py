"""The search for the front, and why the search ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from session.simulated_launching import SimulatedLaunching
from session.task_sample import problem_of, runner, task
from tune_machine import TuneMachine

from autofit.runtime.server.launcher import LaunchResult
from autofit.search.optuna_study import SearchStudy
from autofit.search.space_file import read_workload
from autofit.trial.candidate import Candidate
from autofit.tune.baseline import measure_baseline
from autofit.tune.explore import Exploration


@dataclass(slots=True)
class _Split(SimulatedLaunching):
    """Launches with small ubatches have slow prompts and fast generation."""

    def result(self, plan, request_plan) -> LaunchResult:
        result = SimulatedLaunching.result(self, plan, request_plan)
        prompt_s, predicted_s = _seconds(plan.candidate)
        samples = tuple(
            replace(sample, prompt_s=prompt_s, ttft_s=prompt_s, predicted_s=predicted_s)
            for sample in result.measurement.samples
        )
        return replace(result, measurement=replace(result.measurement, samples=samples))


def _seconds(candidate: Candidate) -> tuple[float, float]:
    is_small = candidate.get_int("ubatch", 512) < 512
    layers = 0.02 * candidate.get_int("n_cpu_moe", 0)
    return (2.0 if is_small else 1.0) + layers, (1.0 if is_small else 1.5) + layers


@pytest.fixture
def exploration(tmp_path) -> Iterator[Exploration]:
    """An exploration of one card that may launch twelve times."""
    machine = TuneMachine(tmp_path, 2600.0)
    workload = read_workload(str(machine.workload))
    about = task(machine.model, machine.server, workload, space=str(machine.space))
    running = replace(runner(about, tmp_path / "study"), launching=_Split())
    running.budget.max_launches = 12
    problem = problem_of(about)
    with running.study:
        search = SearchStudy(problem, seed=1)
        baseline = measure_baseline(about, running)
        yield Exploration(about, running, running.memory, search, baseline)


def test_the_best_of_each_speed_is_found(exploration) -> None:
    """The best in one speed is launched, however slow it is in the other."""
    exploration.search_until(0.2)
    before = len(exploration.evaluations)

    exploration.search_front(seed=1)

    assert before < len(exploration.evaluations) <= 12
    parts = [_seconds(one.candidate) for one in exploration.evaluations]
    fewest = min(one.candidate.get_int("n_cpu_moe", 0) for one in exploration.evaluations)
    assert min(prompt for prompt, _ in parts) == pytest.approx(1.0 + 0.02 * fewest)
    assert min(predicted for _, predicted in parts) < 1.5
    reasons = [one.trial.purpose.reason for one in exploration.evaluations[before:]]
    assert all(reason.startswith(("for pp:", "for tg:")) for reason in reasons)


def test_the_front_takes_few_launches(exploration) -> None:
    """Each metric of the front gets four, and none beyond the budget."""
    exploration.search_until(0.2)
    before = len(exploration.evaluations)

    exploration.search_front(seed=1)

    assert len(exploration.evaluations) - before <= 8


def test_the_result_has_why_the_search_ended(exploration) -> None:
    """The budget, or an expected gain below the least."""
    exploration.search_until(0.2)
    assert exploration.ending["ended_by"] == "budget"

    exploration.search_until(1.0)

    ending = exploration.ending
    assert ending["ended_by"] in {"gain", "space", "stalled"}
    if ending["ended_by"] == "gain":
        assert 0 <= ending["expected_gain"] < ending["least_gain"]
