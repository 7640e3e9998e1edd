"""The option `--baseline`: a user's own command, and its effect on the whole tune."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.model.sizes.kv_cache import kv_element_bytes, kv_types
from autofit.presets.command_options import flag_groups
from autofit.presets.preset_command import PresetCommand, read_preset_command
from autofit.presets.read_preset import read_preset
from autofit.runtime.command.redaction import (
    redact_arguments,
    redact_variables,
    redact_wrapper,
)
from autofit.session.build_task import always_flags
from autofit.session.task_options import TaskOptions
from autofit.trial.candidate import Candidate

_DEFAULT_WORKLOAD = "chat"
_TASK_PARAMS = ("context", "parallel")


def read_baseline(
    given: str, section: str | None, options: TaskOptions
) -> tuple[PresetCommand, TaskOptions]:
    """Return the user's command, and the tune's options with the command's values added.

    All launches get the command's wrapper, variables and remote devices. They then differ from the
    baseline only in settings. The task gets the command's context and slots, unless the options
    set a workload, or these numbers.

    Raises:
        UsageError: the command cannot be read, or contradicts the options.
    """
    try:
        preset = read_preset(given, section=section, model=options.model)
        own = read_preset_command(preset, options.runtime, options.dialect)
    except UsageError as error:
        raise UsageError(f"--baseline: {error.message}", error.hint) from error
    if own.model is not None and not _is_same_file(own.model, options.model):
        raise UsageError(
            f"--baseline serves {own.model}, not {options.model}", "both must serve the same model"
        )
    taken: dict[str, Any] = {**_conditions(own, options), **_task_params(own, options)}
    return own.with_notices(*_notices(taken, own, options)), replace(options, **taken)


def _conditions(own: PresetCommand, options: TaskOptions) -> dict[str, Any]:
    """Return the variables, wrapper and remote devices that the options do not set."""
    env = dict(own.command.env)
    for name, value in env.items():
        if options.env.get(name, value) != value:
            raise UsageError(
                f"--baseline sets {name} to another value than --env",
                "all launches have the same variables: remove one of the two",
            )
    found: dict[str, Any] = {}
    if set(env) - set(options.env):
        found["env"] = {**env, **options.env}
    own_values: tuple[tuple[str, str | tuple[str, ...], str], ...] = (
        ("wrapper", own.wrapper, " ".join(redact_wrapper(own.wrapper))),
        ("rpc", own.command.rpc, own.command.rpc),
    )
    for name, own_value, shown in own_values:
        asked = getattr(options, name)
        if own_value and asked and asked != own_value:
            raise UsageError(
                f"--baseline has `{shown}`, but --{name} has another value",
                f"all launches must have the same: use --{name} '{shown}', or leave it out",
            )
        if own_value and not asked:
            found[name] = own_value
    return found


def _task_params(own: PresetCommand, options: TaskOptions) -> dict[str, Any]:
    """Return the context and slots that the task gets from the command."""
    if options.workload != _DEFAULT_WORKLOAD:
        return {}
    params = {name: own.command.params.get(name) for name in _TASK_PARAMS}
    return {
        name: value
        for name, value in params.items()
        if getattr(options, name) is None and isinstance(value, int) and value > 0
    }


def _notices(taken: dict[str, Any], own: PresetCommand, options: TaskOptions) -> Iterator[str]:
    if "env" in taken:
        added = {n: v for n, v in taken["env"].items() if n not in options.env}
        shown = " ".join(f"{name}={value}" for name, value in redact_variables(added).items())
        yield f"every launch has the baseline's variables: {shown}"
    if "wrapper" in taken:
        shown = " ".join(redact_wrapper(taken["wrapper"]))
        yield f"every launch runs under `{shown}`, as the baseline does"
    if "rpc" in taken:
        yield f"every launch uses the remote devices {taken['rpc']}, as the baseline does"
    task = ", ".join(f"{name} {taken[name]}" for name in _TASK_PARAMS if name in taken)
    if task:
        yield f"the task has the baseline's own {task}; --context and --parallel change it"
    known = flag_groups(options.extra_args)
    set_by_autofit = always_flags(own.runtime)
    others = [
        group
        for group in flag_groups(own.command.rest)
        if group not in known and group[0].partition("=")[0] not in set_by_autofit
    ]
    if others:
        words = [word for group in others for word in group]
        shown = " ".join(redact_arguments(words, own.runtime.help))
        yield f"only the baseline has `{shown}`; options for every launch go after `--`"
    narrow = min(kv_types(Candidate(own.command.params)), key=kv_element_bytes)
    if 0 < kv_element_bytes(narrow) < kv_element_bytes(options.kv_floor):
        yield (
            f"the baseline's KV type {narrow} has fewer bits than the search allows; "
            f"--kv-floor {narrow} allows it"
        )


def _is_same_file(path: Path, other: Path) -> bool:
    """Return whether two paths are the same file. If one is missing, compare their names."""
    other = other.expanduser()
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.name == other.name
