"""The closing of the winner's boundary, on launches that a rule answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from session.simulated_launching import NO_ROOM, SimulatedLaunching
from session.task_sample import runner, task
from tune.whole_tune import tune
from tune_machine import TuneMachine

from autofit.search.space_file import read_workload
from autofit.session.task import Task
from autofit.trial.outcome import Completed
from autofit.trial.trial import Trial


class Tuned:
    """A tune of a card on which host layers are the faster, the more there are."""

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
        """The launches that were asked for their fit only."""
        return [trial for trial in self.trials if trial.fidelity == "load"]


@pytest.fixture(scope="module")
def about(tmp_path_factory) -> Task:
    """A task on one card that holds the experts of about seven of twelve layers."""
    machine = TuneMachine(tmp_path_factory.mktemp("closing"), 2600.0)
    workload = read_workload(str(machine.workload))
    return task(machine.model, machine.server, workload, space=str(machine.space))


@pytest.fixture(scope="module")
def tuned(about, tmp_path_factory) -> Tuned:
    """The tune, with all that it launched."""
    return Tuned(about, tmp_path_factory.mktemp("tuned") / "study", fewest=4)


def test_the_other_side_is_shown_by_launches_that_measure_nothing(tuned):
    """They are asked for the proof of fit alone, and the boundary is proven by them."""
    assert tuned.loaded
    efforts = [e for _, e in tuned.launching.made if e.fidelity == "load"]
    assert all([r.is_warmup for r in request_plan.requests] == [True] for request_plan in efforts)
    assert {trial.phase for trial in tuned.loaded} == {"boundary"}
    (boundary, *_) = tuned.result["boundary"]
    assert boundary["proven"] is True
    shown = {t.candidate.params["n_cpu_moe"]: t.is_completed for t in tuned.loaded}
    assert shown[boundary["fails"]] is False
    assert boundary["fits"] < tuned.result["winner"]["params"]["n_cpu_moe"]


def test_what_was_only_loaded_is_told_as_such(tuned):
    """In what was spent, by phase and fidelity; nothing of it is a measurement."""
    rows = {(r["phase"], r["fidelity"]): r["launches"] for r in tuned.result["spent"]["by_phase"]}

    assert rows["boundary", "load"] == len(tuned.loaded)
    finalists = {t.candidate for t in tuned.trials if t.phase in {"confirm", "prove"}}
    assert not finalists & {trial.candidate for trial in tuned.loaded}


def test_a_resumed_tune_repeats_none_of_them(tuned, about):
    """They are known for what they were asked; the result is the same."""
    folder = Path(tuned.result["study"])

    again = Tuned(about, folder, fewest=4)

    assert again.launching.made == []
    assert again.result["boundary"] == tuned.result["boundary"]
    assert again.result["winner"] == tuned.result["winner"]
    assert again.result["spent"]["by_phase"] == tuned.result["spent"]["by_phase"]
