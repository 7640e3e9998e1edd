"""The baseline that a user gives a tune: their own command, and what it says of the task."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from autofit.cli.options.own_command import OwnCommand, own_command
from autofit.errors import UsageError
from autofit.model.sizes.kv_cache import kv_element_bytes, kv_types
from autofit.presets.option import flag_groups
from autofit.presets.read_preset import read_preset
from autofit.session.build_task import always_flags
from autofit.session.task_options import TaskOptions
from autofit.trial.candidate import Candidate

_USUAL_WORKLOAD = "chat"
_TASK = ("context", "parallel")


def read_baseline(
    given: str, section: str | None, options: TaskOptions
) -> tuple[OwnCommand, TaskOptions]:
    """The user's own command, and the options of the tune with what it decides for all.

    So that nothing but settings tells it from what is tuned, its wrapper, variables and remote
    devices are every launch's. Its context and slots are the task's where the options name
    neither a workload nor a number.

    Raises:
        UsageError: it cannot be read, or the options say otherwise.
    """
    try:
        preset = read_preset(given, section=section, model=options.model)
        own = own_command(preset, options.runtime, options.dialect)
    except UsageError as error:
        raise UsageError(f"--baseline: {error.message}", error.hint) from error
    if own.model is not None and not _is_same_file(own.model, options.model):
        raise UsageError(
            f"--baseline serves {own.model}, not {options.model}", "both must serve one model"
        )
    taken: dict[str, Any] = {**_conditions(own, options), **_task(own, options)}
    return own.noting(*_notices(taken, own, options)), replace(options, **taken)


def _conditions(own: OwnCommand, options: TaskOptions) -> dict[str, Any]:
    """What surrounds the command, as far as the options leave it open."""
    env = dict(own.command.env)
    for name, value in env.items():
        if options.env.get(name, value) != value:
            raise UsageError(
                f"--baseline sets {name}={value}, and --env {name}={options.env[name]}",
                "all launches have the same variables: take one of them away",
            )
    found: dict[str, Any] = {}
    if set(env) - set(options.env):
        found["env"] = {**env, **options.env}
    surroundings: tuple[tuple[str, str | tuple[str, ...], str], ...] = (
        ("wrapper", own.wrapper, shlex.join(own.wrapper)),
        ("rpc", own.command.rpc, own.command.rpc),
    )
    for name, own_value, shown in surroundings:
        asked = getattr(options, name)
        if own_value and asked and asked != own_value:
            raise UsageError(
                f"--baseline has `{shown}`, which is not what --{name} says",
                f"all launches have the same: --{name} '{shown}', or leave it out",
            )
        if own_value and not asked:
            found[name] = own_value
    return found


def _task(own: OwnCommand, options: TaskOptions) -> dict[str, Any]:
    if options.workload != _USUAL_WORKLOAD:
        return {}
    params = own.command.params
    found: dict[str, Any] = {}
    for name in _TASK:
        value = params.get(name)
        if getattr(options, name) is None and isinstance(value, int) and value > 0:
            found[name] = value
    return found


def _notices(taken: dict[str, Any], own: OwnCommand, options: TaskOptions) -> Iterator[str]:
    if "env" in taken:
        shown = " ".join(f"{n}={v}" for n, v in taken["env"].items() if n not in options.env)
        yield f"set for every launch, as for the baseline: {shown}"
    if "wrapper" in taken:
        yield f"every launch runs under `{shlex.join(taken['wrapper'])}`, as the baseline"
    if "rpc" in taken:
        yield f"every launch uses the remote devices {taken['rpc']}, as the baseline"
    task = ", ".join(f"{name} {taken[name]}" for name in _TASK if name in taken)
    if task:
        yield f"the task has the baseline's own {task}; --context and --parallel change it"
    known = flag_groups(options.extra_args)
    decided = always_flags(own.runtime)
    others = [
        group
        for group in flag_groups(own.command.rest)
        if group not in known and group[0].partition("=")[0] not in decided
    ]
    if others:
        yield (
            f"only the baseline has `{shlex.join(word for group in others for word in group)}`; "
            "what the winner's preset shall have, too, goes after `--`"
        )
    narrow = min(kv_types(Candidate(own.command.params)), key=kv_element_bytes)
    if 0 < kv_element_bytes(narrow) < kv_element_bytes(options.kv_floor):
        yield (
            f"the baseline's KV type {narrow} is narrower than what is searched; "
            f"--kv-floor {narrow} lets the tune use it, too"
        )


def _is_same_file(path: Path, other: Path) -> bool:
    """Whether two paths name one file, as far as can be told from another folder."""
    other = other.expanduser()
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.name == other.name
