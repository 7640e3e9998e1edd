"""The rounds of a tune: their length for plain gains, and their place in a small budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.random_machine import random_case
from session.task_sample import options

from autofit.quality.quality_gate import QualityGate
from autofit.search.optuna_study import SearchStudy
from autofit.session.budget import Budget
from autofit.session.runner import TrialRunner
from autofit.session.task_setup import search_header
from autofit.study.study_folder import Study
from autofit.tune.explore import Exploration
from autofit.tune.pipeline import run_tune
from benchmarks.bench_kv import TimedLaunching
from benchmarks.search_machine import SearchMachine


class TimedTune:
    """A whole tune of a simulated machine on a clock of its own."""

    def __init__(self, folder: Path, case: int, *, budget_s: float | None, launches: int) -> None:
        machine = SearchMachine(random_case(case), folder)
        task, memory = machine.task, machine.memory_model()
        launching = TimedLaunching(machine.simulation.with_seed(1), task.workload.context)
        given = options(task.model_path, task.runtime.program)
        header = search_header(task, given, seed=1, argv=[])
        with Study.create(folder / "study", header) as study:
            runner = TrialRunner(
                study=study,
                launching=launching,
                budget=Budget(lambda: launching.now_s, budget_s, launches),
                emit=lambda _: None,
                wall_clock=lambda: launching.now_s,
                memory=memory,
            )
            search = SearchStudy(machine.problem(memory), seed=1)
            gate = QualityGate(None, runner.note)
            self.result = run_tune(
                Exploration(task, runner, memory, search), gate, seed=1
            ).to_dict()
            self.trials = list(runner.trials)
            self.seconds = launching.now_s

    def rounds_of(self, *, baseline: bool) -> list:
        """The launches of the rounds, of the baseline or of all others."""
        own = self.trials[0].candidate
        return [
            t for t in self.trials if t.phase == "confirm" and (t.candidate == own) == baseline
        ]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> TimedTune:
    """A tune whose winner is about five times as fast as the baseline."""
    return TimedTune(tmp_path_factory.mktemp("plain"), 2, budget_s=None, launches=8)


def test_plain_gain_needs_few_short_launches_of_the_baseline(plain):
    """With a large gain the slow baseline gets at most four launches, with short requests."""
    launches = plain.rounds_of(baseline=True)

    assert plain.result["gain"]["low"] > 1.3
    assert 3 <= len(launches) <= 4
    assert {trial.fidelity for trial in launches} == {"short"}
    assert {trial.fidelity for trial in plain.rounds_of(baseline=False)} == {"full"}


def test_small_budget_is_spent_on_the_proof(plain, tmp_path):
    """Without time for three rounds and a proof, the winner is proven and not confirmed."""
    launch_s = plain.trials[0].seconds
    tuned = TimedTune(tmp_path, 2, budget_s=3 * launch_s, launches=8)

    assert tuned.rounds_of(baseline=True) == []
    assert tuned.result["winner"]["proven"]
    assert not tuned.result["winner"]["is_baseline"]
    gain = tuned.result["gain"]
    assert (gain["n"], gain["low"]) == (0, None)
    assert gain["median"] > 1.3
