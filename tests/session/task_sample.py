"""A task on a fake or real runtime, and the runner of its launches, for tests of whole phases."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from autofit.memory.memory_model import MemoryModel
from autofit.search.problem import Problem
from autofit.session.budget import Budget
from autofit.session.build_task import build_task
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.runner import TrialRunner
from autofit.session.search_problem import search_problem
from autofit.session.task import Task
from autofit.session.task_options import TaskOptions
from autofit.session.task_setup import make_launcher, search_header
from autofit.study.study_folder import Study
from autofit.trial.workload import Workload


def options(model: Path, runtime: Path, **changes: Any) -> TaskOptions:
    """The options of a tune of that model on that runtime."""
    fields: dict[str, Any] = {"workload": "demo", "kv_floor": "q4_0", **changes}
    return TaskOptions(**{"model": model, "runtime": str(runtime), **fields})


def task(model: Path, runtime: Path, workload: Workload, **changes: Any) -> Task:
    """A task with that workload."""
    return replace(build_task(options(model, runtime, **changes)), workload=workload)


def problem_of(about: Task, memory: MemoryModel | None = None) -> Problem:
    """Return the search problem of a task, with margins by a memory model or arithmetic."""
    return search_problem(CandidateFactory(about), memory or about.memory_model())


def runner(about: Task, folder: Path) -> TrialRunner:
    """A runner for a new study in that folder, or for the one that is there."""
    head = search_header(about, options(about.model_path, about.runtime.program), seed=1, argv=[])
    has_one = (folder / "study.json").exists()
    study = Study.resume(folder, head) if has_one else Study.create(folder, head)
    return TrialRunner(
        study=study,
        launching=make_launcher(about),
        budget=Budget(time.monotonic),
        emit=lambda _: None,
        wall_clock=time.time,
        memory=about.memory_model(),
    )
