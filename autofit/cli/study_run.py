"""What every command that launches servers for a study does around it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import click

from autofit.cli.stopping import Stopping
from autofit.machine.host_load import host_state
from autofit.machine.lock import machine_lock
from autofit.output.text.console import TuneConsole
from autofit.process import removed_variables, system_config
from autofit.session.events import Listener, Notice
from autofit.session.task import Task
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.study.study_location import new_study_folder


def ask_when_busy() -> None:
    """On a terminal, ask before measuring on a machine that others use."""
    if not sys.stdin.isatty():
        return
    state = host_state(0.5)
    if state.is_busy:
        for line in state.words():
            click.echo(line, err=True)
        click.confirm("The machine is busy; measure anyway?", abort=True, err=True)


@contextmanager
def measured_folder(folder: Path | None, name: str) -> Iterator[Path]:
    """The folder of a study that holds the machine; a new one is made once it does.

    Raises:
        MachineInUseError: another autofit measures here; nothing was made.
        AutofitError: there is no place for a new folder.
    """
    with machine_lock(str(folder.absolute()) if folder else f"of {name}") as call:
        path = folder or new_study_folder(name, today=date.today())  # noqa: DTZ011
        call(str(path.absolute()))
        yield path


@contextmanager
def opened_study(
    folder: Path | None,
    head: StudyHeader,
    task: Task,
    *,
    resume: bool,
    stopping: Stopping,
    budget_s: float | None = None,
) -> Iterator[tuple[Study, Listener]]:
    """A study to write, new or resumed, with the machine to itself, told on stderr.

    Raises:
        Interrupted: the user stopped the run; says how to go on.
        MachineInUseError: another autofit measures here.
        UsageError, AutofitError: there is no such study, or it cannot be written.
    """
    limits_mib = {device.name: device.usable_mib for device in task.devices}
    console = TuneConsole(task.workload, budget_s=budget_s, limits_mib=limits_mib)
    with (
        measured_folder(folder, head.model_name) as path,
        Study.resume(path, head) if resume else Study.create(path, head) as study,
        console,
        stopping.watched(study, console),
    ):
        for notice in _notices(study, task):
            console(Notice(notice))
        yield study, console


def _notices(study: Study, task: Task) -> Iterator[str]:
    yield f"study {study.path}"
    yield from study.notices
    yield from task.inventory.notices
    yield from task.notices
    config = system_config()
    if config:
        yield f"{config} changes llama.cpp's defaults; autofit sets what it measures itself"
    variables = task.runtime.dialect.variables
    removed = removed_variables(task.env, also_remove=variables)
    if removed:
        yield f"not passed on to the runtime: {', '.join(removed)} (use --env to do so)"
    for name, value in task.task_params.items():
        own = (task.baseline_params or {}).get(name, value)
        if own != value:
            yield f"the baseline is measured with {name} {value} like all, not with {own}"
    yield from host_state(0.3).words()
