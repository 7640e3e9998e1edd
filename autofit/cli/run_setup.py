"""The setup shared by all commands that launch servers: study, machine lock, console, signals."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofit.cli.options.shared_options import RunOptions
from autofit.errors import AutofitError, Interrupted
from autofit.knowledge.knowledge_folder import add_study
from autofit.knowledge.study_knowledge import learn_study, machine_of
from autofit.machine.host_load import watch_host
from autofit.machine.lock import machine_lock
from autofit.memory.memory_model import MemoryModel
from autofit.output.live.run_console import RunConsole
from autofit.output.text.best_so_far_text import print_best_so_far
from autofit.output.text.console import make_console
from autofit.process.environment import removed_variables, system_config
from autofit.runtime.planner.planner import PlannerUsage, RuntimePlanner
from autofit.session.budget import Budget
from autofit.session.events import Finished, Listener, MemoryRead, Notice
from autofit.session.runner import TrialRunner, resume_hint
from autofit.session.task import Task
from autofit.session.task_setup import make_launcher
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.study.study_location import create_study_folder

if TYPE_CHECKING:  # the storage's libraries are heavy
    from autofit.fleet.shared_tune import SharedTune


@contextmanager
def describe_stop(study: Study) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into an error whose hint says how to resume the study.

    Raises:
        Interrupted: the user stopped the run.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted("stopped", resume_hint(study)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run, with an open study and a locked machine.

    All runners of the run share its budget. `notices` are the notices shown so far. `measured`
    are the tasks with their runners.
    """

    study: Study
    emit: Listener
    budget: Budget
    notices: list[str]
    measured: list[tuple[Task, TrialRunner]] = field(default_factory=list)

    def notice(self, text: str) -> None:
        """Show a notice to the user, and keep it."""
        self.notices.append(text)
        self.emit(Notice(text))

    def make_runner(
        self,
        task: Task,
        memory: MemoryModel | None = None,
        shared: SharedTune | None = None,
    ) -> TrialRunner:
        """Return a runner that writes its trials to the study and stops at the user's request.

        The memory model, if given, observes every trial, and launches are judged from what
        earlier launches have shown. Other workers get the trials through `shared`.
        """
        launcher = make_launcher(task, memory, lambda reading: self.emit(MemoryRead(reading)))
        runner = TrialRunner(
            study=self.study,
            launching=launcher,
            budget=self.budget,
            emit=self.emit,
            wall_clock=time.time,
            memory=memory,
            shared=shared,
        )
        self.measured.append((task, runner))
        for text in self.study.notices:  # it has read the trials
            if text not in self.notices:
                self.notice(text)
        return runner

    def conclude(self, result: dict[str, Any]) -> None:
        """Write the result to the study, and end the display."""
        with self.keeping_result("the result"):
            self.study.conclude(result)
        self.emit(Finished(result))

    @contextmanager
    def keeping_result(self, written: str) -> Iterator[None]:
        """Turn an error in the block into a notice, so that the result is not lost.

        Args:
            written: the name of what the block writes.
        """
        try:
            yield
        except AutofitError as error:
            self.notice(f"{written} was not written: {error.message}; {error.hint}")
        except Exception as error:  # noqa: BLE001 - also a fault in a library that draws a plot
            self.notice(f"{written} was not written: {type(error).__name__}: {error}")


@contextmanager
def open_run(
    options: RunOptions,
    header: StudyHeader,
    tasks: Sequence[Task],
    *,
    notices: Iterable[str] = (),
    folder_name: str = "",
    max_launches: int | None = None,
    planner: RuntimePlanner | None = None,
) -> Iterator[Run]:
    """Lock the machine, open a new or resumed study, and show the run's progress on stderr.

    The name of a new folder begins with `folder_name`, by default the model's name. `notices`
    are shown with the notices of all runs. The budget counts the use of the `planner`.

    Raises:
        Interrupted: the user stopped the run. The hint says how to resume it.
        MachineInUseError: another autofit uses the machine. No folder was made.
        UsageError, AutofitError: there is no such study, or it cannot be written.
    """
    console = RunConsole(
        tasks[0].workload,
        metric=tasks[0].objective,
        budget_s=options.budget_s,
        verbose=options.verbose,
        limits_mib={device.name: device.usable_mib for task in tasks for device in task.devices},
    )
    with (
        _make_folder(options, folder_name or header.model_name) as path,
        Study.resume(path, header) if options.resume else Study.create(path, header) as study,
        _best_so_far_if_stopped(study),
        console,
        describe_stop(study),
    ):
        shown = [
            f"study {study.path}",
            *study.notices,
            *notices,
            *_environment_notices(tasks),
        ]
        for text in shown:
            console(Notice(text))
        usage = planner.usage if planner else PlannerUsage()
        budget = Budget(time.monotonic, options.budget_s, max_launches, planner_usage=usage)
        run = Run(study=study, emit=console, budget=budget, notices=shown)
        yield run
        if options.keeps_knowledge:
            _keep_knowledge(run)


def _keep_knowledge(run: Run) -> None:
    """Keep what the launches of a finished run showed about this machine."""
    for index, (task, runner) in enumerate(run.measured):
        learned = learn_study(
            task,
            runner.trials,
            runner.memory,
            study_id=f"{run.study.path.name} {run.study.header.created_at:.0f} {index}",
            finished_at=time.time(),
        )
        fault = add_study(machine_of(task), learned) if learned else ""
        if fault:
            run.emit(Notice(f"machine knowledge was not kept: {fault}"))


@contextmanager
def _best_so_far_if_stopped(study: Study) -> Iterator[None]:
    """Print the best so far of a tune on stderr if an error or the user ends it."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        # The hint of a stop says how to go on.
        is_stop = isinstance(error, Interrupted)
        with suppress(AutofitError, OSError):
            console = make_console(sys.stderr)
            print_best_so_far(study, console, says_how_to_go_on=not is_stop)
        raise


@contextmanager
def _make_folder(options: RunOptions, name: str) -> Iterator[Path]:
    """Lock the machine if the run does so, and make the study's folder only after that."""
    folder = options.study
    study = str(folder.absolute()) if folder else f"of {name}"
    devices = options.locked_devices
    lock = machine_lock(study, devices=devices) if options.locks_machine else nullcontext()
    with lock as set_study:
        path = folder or create_study_folder(name, today=date.today())  # noqa: DTZ011
        if set_study is not None:
            set_study(str(path.absolute()))
        yield path


def _environment_notices(tasks: Sequence[Task]) -> Iterator[str]:
    """Yield notices about files, variables and programs that could change measurements."""
    config = system_config()
    if config:
        yield f"{config} changes the defaults of all llama.cpp servers here"
    kept = {name: value for task in tasks for name, value in task.env.items()}
    variables = {name for task in tasks for name in task.runtime.dialect.variables}
    removed = removed_variables(kept, also_remove=frozenset(variables))
    if removed:
        yield f"not passed to the runtime: {', '.join(removed)} (pass them with --env)"
    yield from watch_host(0.3).warnings()
