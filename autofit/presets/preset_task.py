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

    runtime: str | None
    dialect: str | None
    model: Path | None
    workload: str
    context: int | None
    parallel: int | None
    extra_args: tuple[str, ...] = ()


def build_preset_task(
    preset: ParsedPreset,
    options: PresetOptions,
    *,
    objective: Metric,
    workload: Workload | None = None,
) -> Task:
    """Return the task of launching a preset, whose baseline is the preset's command.

    `workload` replaces the one that the options name.

    Raises:
        UsageError: there is no such runtime or model, or the preset cannot be read.
        NothingFitsError: the runtime has none of the values of the search space.
    """
    own = read_preset_command(preset, options.runtime, options.dialect)
    command = own.command
    task = build_task(
        TaskOptions(
            model=_find_model(preset, own, options),
            runtime=None,
            dialect=None,
            space=None,
            workload=options.workload,
            context=options.context,
            parallel=options.parallel,
            devices_mib={},
            rpc=command.rpc,
            pins={},
            env=dict(command.env),
            wrapper=own.wrapper,
            kv_floor="q8_0",
            extra_args=options.extra_args,
        ),
        runtime=own.runtime,
        objective=objective,
        searches=False,
    )
    given = {"context": options.context, "parallel": options.parallel}
    replaced = {name: value for name, value in given.items() if value is not None}
    return replace(
        task,
        workload=workload or task.workload,
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
