"""Whole tunes that find both sides of the winner's fit boundary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from session.simulated_launching import NO_ROOM, SimulatedLaunching
from session.task_sample import runner
from tune.whole_tune import tune

from autofit.session.task import Task
from autofit.trial.outcome import Completed
from autofit.trial.trial import Trial


class Tuned:
    """A tune of a card on which more host layers are faster."""

    def __init__(self, about: Task, folder: Path, fewest: int) -> None:
        self.launching = SimulatedLaunching(
            outcome_of=lambda candidate, _: (
                Completed() if candidate.get_int("n_cpu_moe", 99) >= fewest else NO_ROOM
            ),
            seconds_of=lambda candidate: 3.0 - 0.1 * candidate.get_int("n_cpu_moe", 0),
        )
        running = replace(runner(about, folder), launching=self.launching)
        running.budget.max_launches = 40
        self.result = tune(about, running)
        self.trials = running.study.trials()

    @property
    def loaded(self) -> list[Trial]:
        """The launches that only tested the fit."""
        return [trial for trial in self.trials if trial.fidelity == "load"]


@pytest.fixture(scope="module")
def tuned(about, tmp_path_factory) -> Tuned:
    """The tune, with all that it launched."""
    return Tuned(about, tmp_path_factory.mktemp("tuned") / "study", fewest=4)


def test_the_failing_side_is_found_by_tests_of_fit(tuned):
    """They have one request, and the boundary is proven by them."""
    assert tuned.loaded
    efforts = [e for _, e in tuned.launching.made if e.fidelity == "load"]
    assert all([r.is_warmup for r in request_plan.requests] == [True] for request_plan in efforts)
    assert {trial.phase for trial in tuned.loaded} == {"boundary"}
    (boundary, *_) = tuned.result["boundary"]
    assert boundary["proven"] is True
    shown = {t.candidate.params["n_cpu_moe"]: t.is_completed for t in tuned.loaded}
    assert shown[boundary["fails"]] is False
    assert boundary["fits"] < tuned.result["winner"]["params"]["n_cpu_moe"]


def test_tests_of_fit_are_counted_apart(tuned):
    """They have a row of their own in what was spent, and no finalist is among them."""
    rows = {(r["phase"], r["fidelity"]): r["launches"] for r in tuned.result["spent"]["by_phase"]}

    assert rows["boundary", "load"] == len(tuned.loaded)
    finalists = {t.candidate for t in tuned.trials if t.phase in {"confirm", "prove"}}
    assert not finalists & {trial.candidate for trial in tuned.loaded}


def test_a_resumed_tune_repeats_no_test_of_fit(tuned, about):
    """All are taken from the study, and the result is the same."""
    folder = Path(tuned.result["study"])

    again = Tuned(about, folder, fewest=4)

    assert again.launching.made == []
    assert again.result["boundary"] == tuned.result["boundary"]
    assert again.result["winner"] == tuned.result["winner"]
    assert again.result["spent"]["by_phase"] == tuned.result["spent"]["by_phase"]
