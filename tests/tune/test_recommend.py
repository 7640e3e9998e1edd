"""The recommended candidate: the check of its answers, and warnings about it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from quality.simulated_answers import AnsweringClient
from session.simulated_launching import SimulatedLaunching
from session.task_sample import runner

from autofit.quality.output_evaluator import OutputEvaluator
from autofit.quality.quality_gate import QualityGate
from autofit.runtime.server.request_plan import plan_measurement
from autofit.search.optuna_study import SearchStudy
from autofit.session.budget import Budget
from autofit.session.finalist import Proof, baseline_finalist
from autofit.trial.purpose import TrialPurpose
from autofit.tune.baseline import measure_baseline
from autofit.tune.explore import Exploration
from autofit.tune.prove import Prover, launch_proof
from autofit.tune.recommend import Recommendation, Recommender, add_warnings


@pytest.fixture
def warn(about, problem, finalist, tmp_path):
    """A function that returns the warnings about a winner."""

    def of(free_mib: float, host: int, limit_mib: float | None, memory=None) -> list[str]:
        launching = SimulatedLaunching(free_mib=free_mib)
        running = replace(runner(about, tmp_path / "study"), launching=launching)
        limited = about
        if limit_mib is not None:
            devices = tuple(replace(d, usable_mib=limit_mib) for d in about.devices)
            limited = replace(about, devices=devices, chooses_devices=True)
        with running.study:
            proof = Proof(finalist(host), launch_proof(finalist(host), about, running))
            exploration = Exploration(
                limited,
                running,
                memory or about.memory_model(),
                SearchStudy(problem, seed=1),
                proof.trial,
            )
            add_warnings(Recommendation(proof, None), exploration)
        return running.notes

    return of


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ((500.0, 4, None), "room for 2 more expert layers"),
        ((250.0, 4, None), "room for one more expert layer"),
        ((200.0, 4, None), None),
        ((500.0, 0, None), None),
        ((500.0, 4, 2100.0), None),
        ((500.0, 4, 2300.0), "room for one more expert layer"),
    ],
)
def test_unused_memory_is_named(warn, left, words):
    """A device with room for an expert layer, within the user's limit, is named."""
    assert [words in text for text in warn(*left)] == [True] * (words is not None)


def test_unused_memory_needs_a_prediction(warn, about):
    """Without one it is unknown where layers lie."""
    assert warn(500.0, 4, None, replace(about, devices=()).memory_model()) == []


@pytest.mark.parametrize("has_time", [True, False])
def test_a_second_winner_does_not_keep_the_answers_of_the_first(
    has_time, about, problem, finalist, tmp_path
):
    """The second has no check at all if the first answers wrongly and no time is left."""
    first, second = finalist(4, cache_type="f16"), finalist(5, cache_type="f16")
    seconds, late_s = count(), 0.0

    def client_of(candidate) -> AnsweringClient:
        nonlocal late_s
        if candidate != first.candidate:
            return AnsweringClient()
        late_s = 0.0 if has_time else 10_000.0
        return AnsweringClient(change=0.5)

    launching = SimulatedLaunching(
        seconds_of=lambda candidate: 1.0 if "n_cpu_moe" in candidate.params else 2.0,
        client_of=client_of,
    )
    running = replace(
        runner(about, tmp_path / "study"),
        launching=launching,
        budget=Budget(lambda: next(seconds) + late_s, 9_000.0),
    )
    with running.study:
        baseline = measure_baseline(about, running)
        for one in (first, second):
            running.run(
                TrialPurpose("search", "explore"), one.candidate,
                plan_measurement(about.workload, 512, repeats=1), layout=one.layout,
            )  # fmt: skip
        gate = QualityGate(OutputEvaluator(running, about, baseline_finalist(about)), running.note)
        exploration = Exploration(
            about, running, running.memory, SearchStudy(problem, seed=1), baseline
        )
        found = Recommender(
            task=about, runner=running, planner=None, gate=gate, seed=1,
            prover=Prover(about, running, exploration),
        ).recommend(baseline, [first, second], None)  # fmt: skip

    assert found.proof.finalist == second
    assert (found.answers and found.answers.verdict) == ("equal" if has_time else None)
    assert [trial.candidate for trial in running.trials if trial.purpose.role == "answers"] == [
        one.candidate for one in ((first, second) if has_time else (first,))
    ]
