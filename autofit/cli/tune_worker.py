"""A tune that shares its trials with other workers through an Optuna storage."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autofit.cli.run_setup import Run
from autofit.cli.say import say
from autofit.fleet.shared_trials import Summary
from autofit.fleet.shared_tune import SharedTune, compare_conditions
from autofit.fleet.storage import WaitingStorage, open_storage, shown_url
from autofit.memory.memory_model import MemoryModel
from autofit.session.task import Task
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.study.study_location import safe_name
from autofit.trial.metric import Metric, fastest_repeats, median_metric
from autofit.trial.outcome import lacks_device_memory
from autofit.trial.trial import Trial
from autofit.tune.explore import Exploration
from autofit.tune.follow import follow

if TYPE_CHECKING:
    from autofit.cli.tune_run import TuneRun

# The id of the worker that writes a study folder.
_WORKER_FILE = "worker"
_METRICS: tuple[Metric, ...] = ("request_s", "pp", "tg", "ttft")
_MEASURING_ROLES = ("baseline", "explore", "round")


@dataclass(slots=True)
class Fleet:
    """The storage of a shared tune, and the name of its study there.

    Notices are printed with `report`, until a run shows them.
    """

    url: str
    storage: WaitingStorage
    name: str
    report: Callable[[str], None]

    def hide_password(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the words of a command without the password of the storage's URL."""
        return tuple(word.replace(self.url, shown_url(self.url)) for word in argv)

    def tune(
        self, run: Run, memory: MemoryModel, header: StudyHeader, tune: TuneRun
    ) -> dict[str, Any]:
        """Explore with the other workers until there is a result, and return it."""
        self.report = run.notice
        task, search = tune.task, tune.search(run, memory)
        shared = SharedTune(
            storage=self.storage,
            name=self.name,
            worker=_worker_id(run.study),
            distributions=search.distributions,
            summarize=lambda trial: summarize(trial, task),
            report=run.notice,
        )
        with shared.joined(header, [device.name for device in task.devices]):
            if tune.run_options.locked_devices:
                run.notice(
                    "other workers may measure on other devices of this machine meanwhile: all "
                    "share its processor and system RAM, which can slow them down"
                )
            run.notice(f"shared with other workers: study {self.name} in {shown_url(self.url)}")
            shared.deliver_missing(run.study.trials())
            runner = run.make_runner(task, memory, shared)
            exploration = Exploration(task, runner, memory, search)
            result = follow(exploration, shared, tune.budget)
            if result is None:
                own = tune.lead(runner, exploration)
                # While this worker was believed dead another one may have led.
                result = shared.find_result(tune.budget)
                if result is None:
                    result = own
                    shared.conclude(own)
        return {**result, "study": str(run.study.path)}


def open_fleet(url: str, name: str | None, header: StudyHeader, task: Task) -> Fleet:
    """Open a storage, and check that a worker with this header may join the study there.

    Without a name the study has those of the model and the workload.

    Raises:
        UsageError: the storage cannot be used, or the study has other conditions.
    """

    def report(text: str) -> None:
        fleet.report(text)

    storage = open_storage(url, report=report)
    name = name or f"{safe_name(header.model_name)}-{header.workload.name}"
    fleet = Fleet(url, storage, name, lambda text: say(f"notice: {text}", err=True))
    compare_conditions(storage, name, header, [device.name for device in task.devices])
    return fleet


def _worker_id(study: Study) -> str:
    """Return the id of the worker that writes a study; a resumed run keeps it."""
    path = study.path / _WORKER_FILE
    if not path.exists():
        study.write_output(_WORKER_FILE, uuid.uuid4().hex[:12])
    return path.read_text("utf-8").strip()


def summarize(trial: Trial, task: Task) -> Summary:
    """Return the columns of a trial in the storage."""
    measured = trial.measurement if trial.is_completed else None
    if trial.purpose.role not in _MEASURING_ROLES or trial.shows_fit_only:
        measured = None
    values: dict[Metric, float | None] = {}
    if measured is not None:
        fastest = fastest_repeats(measured, task.workload)
        values = {name: median_metric(fastest, task.workload, name) for name in _METRICS}
    constraints = {"device_memory": 1.0 if lacks_device_memory(trial.outcome) else 0.0}
    for requirement in task.requirements if measured else ():
        constraints[str(requirement)] = requirement.shortfall(measured, task.workload)
    found: dict[str, float] = {name: value for name, value in values.items() if value is not None}
    return Summary(
        values.get(task.objective),
        constraints,
        {"outcome": trial.outcome.kind, "seconds": round(trial.seconds, 1), **found},
    )
