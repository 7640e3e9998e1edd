"""A preset on the command line: what it launches, on which runtime, with which model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from autofit.cli.options.own_command import OwnCommand, own_command
from autofit.errors import UsageError
from autofit.presets.read_preset import ReadPreset
from autofit.session.build_task import build_task
from autofit.session.task import Task
from autofit.session.task_options import TaskOptions
from autofit.trial.metric import Metric
from autofit.trial.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetOptions:
    """What the command line says about a preset; None leaves it to the preset.

    `runtime` starts it instead of its own program; `context` and `parallel` replace its own.
    """

    runtime: str | None
    dialect: str | None
    model: Path | None
    workload: str
    context: int | None
    parallel: int | None
    extra_args: tuple[str, ...] = ()


def preset_situation(
    preset: ReadPreset,
    options: PresetOptions,
    *,
    objective: Metric,
    workload: Workload | None = None,
) -> Task:
    """Everything known of a preset before it is launched; its command is the baseline.

    `workload` is asked for instead of the one that the options name.

    Raises:
        UsageError: there is no such runtime or model, or the preset cannot be read.
        NothingFitsError: the runtime takes none of the usual settings.
    """
    own = own_command(preset, options.runtime, options.dialect)
    runtime, command = own.runtime, own.command
    task = build_task(
        TaskOptions(
            model=_model(preset, own, options),
            runtime=None if runtime.dialect.program.command else str(runtime.program),
            dialect=options.dialect or runtime.dialect.name,
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
        objective=objective,
        searches=False,
    )
    asked = {"context": options.context, "parallel": options.parallel}
    overrides = {name: value for name, value in asked.items() if value is not None}
    return replace(
        task,
        workload=workload or task.workload,
        baseline_params={**command.params, **overrides},
        baseline_args=command.rest,
        has_own_task=True,
        notices=own.notices,
    )


def _model(preset: ReadPreset, own: OwnCommand, options: PresetOptions) -> Path:
    if options.model is not None:
        return options.model
    if own.model is None:
        raise UsageError(
            f"the preset {preset.label} names no model file", "name one with --model MODEL.gguf"
        )
    return own.model
