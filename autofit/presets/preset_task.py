"""The task of launching a preset as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from autofit.errors import UsageError
from autofit.presets.preset_command import PresetCommand, read_preset_command
from autofit.presets.read_preset import ParsedPreset
from autofit.session.build_task import build_task
from autofit.session.task import Task
from autofit.session.task_options import TaskOptions
from autofit.trial.metric import Metric
from autofit.trial.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetOptions:
    """Options that replace parts of a preset; None keeps the preset's own."""

    runtime: str | None = None
    dialect: str | None = None
    model: Path | None = None
    workload: str | None = None
    context: int | None = None
    parallel: int | None = None
    extra_args: tuple[str, ...] = ()


def build_preset_task(
    preset: ParsedPreset,
    options: PresetOptions,
    *,
    objective: Metric,
    tuned_for: Workload | None = None,
) -> Task:
    """Return the task of launching a preset, whose baseline is the preset's command.

    The requests are those that the options name, else `tuned_for`, else the workload `chat`.

    Raises:
        UsageError: there is no such runtime or model, or the preset cannot be read.
        NothingFitsError: the runtime has none of the values of the search space.
    """
    own = read_preset_command(preset, options.runtime, options.dialect)
    command = own.command
    task = build_task(
        TaskOptions(
            model=_find_model(preset, own, options),
            workload=options.workload or "chat",
            context=options.context,
            parallel=options.parallel,
            rpc=command.rpc,
            env=dict(command.env),
            wrapper=own.wrapper,
            extra_args=options.extra_args,
        ),
        runtime=own.runtime,
        objective=objective,
        searches=False,
    )
    given = {"context": options.context, "parallel": options.parallel}
    replaced = {name: value for name, value in given.items() if value is not None}
    names_requests = options.workload is not None or bool(replaced)
    return replace(
        task,
        workload=task.workload if names_requests else tuned_for or task.workload,
        baseline_params={**command.params, **replaced},
        baseline_args=command.rest,
        has_own_task=True,
        notices=own.notices,
    )


def _find_model(preset: ParsedPreset, own: PresetCommand, options: PresetOptions) -> Path:
    if options.model is not None:
        return options.model
    if own.model is None:
        raise UsageError(
            f"the preset {preset.label} names no model file", "name one with --model MODEL.gguf"
        )
    return own.model
