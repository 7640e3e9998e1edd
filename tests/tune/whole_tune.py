"""Whole tunes of one card on simulated launches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from session.simulated_launching import SimulatedLaunching
from session.task_sample import problem_of, runner, task
from tune_machine import TuneMachine

from autofit.quality.output_evaluator import OutputEvaluator
from autofit.quality.quality_gate import QualityGate
from autofit.search.optuna_study import SearchStudy
from autofit.search.space_file import read_workload
from autofit.session.events import Event, LaunchStarted
from autofit.session.finalist import baseline_finalist
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.trial import Trial
from autofit.tune.explore import Exploration
from autofit.tune.pipeline import run_tune

# Role and subject of a launch for answers.
Asked = tuple[str, str]


def asked_by(trial: Trial) -> Asked | None:
    """The answers that a launch was for, None for other launches."""
    purpose = trial.purpose
    return (purpose.role, purpose.subject) if purpose.subject else None


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a tune, all its trials, and how many of them were launched now."""

    result: dict[str, Any]
    trials: list[Trial]
    launched: int

    @property
    def notes(self) -> str:
        """All notes."""
        return "\n".join(self.result["notes"])

    def of_phase(self, *phases: str) -> list[Trial]:
        """The launches of some phases."""
        return [trial for trial in self.trials if trial.phase in phases]

    @property
    def asked(self) -> list[Asked]:
        """The launches for answers, in their order."""
        return [one for trial in self.trials if (one := asked_by(trial))]

    def asking(self, asked: Asked) -> list[Trial]:
        """The launches for these answers."""
        return [trial for trial in self.trials if asked_by(trial) == asked]


def one_card(folder: Path) -> Task:
    """A task on one card, with two KV types to choose from."""
    machine = TuneMachine(folder, 2600.0)
    workload = read_workload(str(machine.workload))
    return task(machine.model, machine.server, workload, space=str(machine.space))


def tune(task: Task, running: TrialRunner, *, checks_answers: bool = False) -> dict[str, Any]:
    """The result of a tune with that runner, whose study is closed then."""
    evaluator = OutputEvaluator(running, task, baseline_finalist(task))
    gate = QualityGate(evaluator if checks_answers else None, running.note)
    search = SearchStudy(problem_of(task, running.memory), seed=1)
    exploration = Exploration(task, running, running.memory, search)
    with running.study:
        return run_tune(exploration, gate, seed=1).to_dict()


def whole_tune(
    folder: Path,
    task: Task,
    launching: SimulatedLaunching,
    *,
    max_launches: int,
    checks_answers: bool = True,
    stops_at: Asked | None = None,
) -> Tuned:
    """A tune in that study; it is stopped after a launch for the answers `stops_at`."""
    running = replace(runner(task, folder), launching=launching)
    running.budget.max_launches = max_launches
    emit = running.emit

    def stop(event: Event) -> None:
        emit(event)
        is_made = stops_at and any(asked_by(trial) == stops_at for trial in running.trials)
        if isinstance(event, LaunchStarted) and is_made:
            raise KeyboardInterrupt

    running.emit = stop
    result = tune(task, running, checks_answers=checks_answers)
    return Tuned(result, list(running.trials), len(launching.made))
