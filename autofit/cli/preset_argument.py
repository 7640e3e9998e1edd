"""A preset on the command line: what it launches, on which runtime, with which model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from autofit.cli.preparation import look
from autofit.cli.task_options import TaskOptions
from autofit.errors import UsageError
from autofit.output.preset.reading import ReadPreset
from autofit.runtime.ability import Runtime
from autofit.runtime.argv_reader import Command, read_command
from autofit.runtime.dialect_file import all_dialects
from autofit.runtime.discovery import find_runtime
from autofit.trial.metric import Metric
from autofit.trial.workload import Workload
from autofit.tuning.situation import Situation


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
) -> Situation:
    """Everything known of a preset before it is launched; its command is the baseline.

    `workload` is asked for instead of the one that the options name.

    Raises:
        UsageError: there is no such runtime or model, or the preset cannot be read.
        NothingFitsError: the runtime takes none of the usual settings.
    """
    runtime = _runtime(preset, options)
    words = preset.words(runtime.help, str(runtime.program))
    command = read_command(words, runtime.dialect, runtime.help, preset.env)
    situation = look(
        TaskOptions(
            model=_model(preset, command, options),
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
            wrapper=_wrapper(command.program, runtime),
            kv_floor="q8_0",
            extra_args=options.extra_args,
        ),
        objective=objective,
        searches=False,
    )
    asked = {"context": options.context, "parallel": options.parallel}
    overrides = {name: value for name, value in asked.items() if value is not None}
    return replace(
        situation,
        workload=workload or situation.workload,
        baseline_params={**command.params, **overrides},
        baseline_args=command.rest,
        has_own_task=True,
    )


def _runtime(preset: ReadPreset, options: PresetOptions) -> Runtime:
    """The runtime asked for, else the preset's own program, else the first one here."""
    if options.runtime is not None or not preset.argv:
        return find_runtime(options.runtime, options.dialect)
    dialects = all_dialects()
    for dialect in dialects.values():
        tail = dialect.program.command[1:]
        if tail and _position(tail, preset.argv) is not None:
            return find_runtime(None, options.dialect or dialect.name)
    names = {name for dialect in dialects.values() for name in dialect.program.names}
    program = next((word for word in preset.argv if PurePath(word).name in names), None)
    if program is None:
        # A program of another name: whatever comes right before the first flag.
        flags = (i for i, word in enumerate(preset.argv) if word.startswith("-"))
        program = preset.argv[max(0, next(flags, 1) - 1)]
    is_bare = program == PurePath(program).name and PurePath(program).name in names
    try:
        return find_runtime(None if is_bare else program, options.dialect)
    except UsageError as error:
        raise UsageError(
            f"{preset.label}: {error.message}", f"name the runtime with --runtime; {error.hint}"
        ) from error


def _model(preset: ReadPreset, command: Command, options: PresetOptions) -> Path:
    if options.model is not None:
        return options.model
    if command.model is None:
        raise UsageError(
            f"the preset {preset.label} names no model file", "name one with --model MODEL.gguf"
        )
    return Path(command.model)


def _wrapper(program: Sequence[str], runtime: Runtime) -> tuple[str, ...]:
    """The words before those that start the runtime."""
    for words in (runtime.dialect.program.command[1:], runtime.command[1:]):
        place = _position(words, program) if words else None
        if place is not None:
            return tuple(program[: max(0, place - 1)])
    return tuple(program[:-1])


def _position(words: Sequence[str], within: Sequence[str]) -> int | None:
    for start in range(len(within) - len(words) + 1):
        if tuple(within[start : start + len(words)]) == tuple(words):
            return start
    return None
