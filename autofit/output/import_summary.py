"""The output of `autofit import`: a user's command for people, as JSON, and as a script."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autofit.presets.formats.shell import script
from autofit.presets.preset_command import PresetCommand
from autofit.presets.read_preset import ParsedPreset
from autofit.runtime.command.redaction import (
    redact_arguments,
    redact_variables,
    redact_wrapper,
)
from autofit.text_format import mib, one_line, params_line
from autofit.units import MIB


def import_document(found: PresetCommand) -> dict[str, Any]:
    """Return the command as JSON data that is itself a preset."""
    preset, command = found.preset, found.command
    return {
        "schema": 1,
        "source": preset.label,
        "kind": preset.kind,
        "section": preset.section or None,
        "runtime": found.runtime.name,
        "program": list(found.program),
        "model_path": str(found.model) if found.model else None,
        "model_is_there": _exists(found.model),
        "params": dict(command.params),
        "passed_through": list(_shown_rest(found)),
        "left_out": list(dict.fromkeys((*command.address, *command.left_out))),
        "rpc": command.rpc or None,
        "env": redact_variables(found.env),
        "wrapper": list(redact_wrapper(found.wrapper)),
        "notices": list(found.notices),
        "argv": list(_shown_argv(found)),
    }


def _shown_rest(found: PresetCommand) -> tuple[str, ...]:
    """Return the arguments that are passed through, without secrets."""
    return redact_arguments(found.command.rest, found.runtime.help)


def _shown_argv(found: PresetCommand) -> tuple[str, ...]:
    """Return the whole command without secrets."""
    own = found.argv[len(found.wrapper) : len(found.argv) - len(found.command.rest)]
    return (*redact_wrapper(found.wrapper), *own, *_shown_rest(found))


def import_lines(found: PresetCommand, output: str | None = None) -> Iterator[str]:
    """Yield the parts of the command for people; `output` is the file that is written."""
    preset, command = found.preset, found.command
    variables = redact_variables(command.env)
    kind = f"{preset.kind} `{preset.section}`" if preset.section else preset.kind
    rows = [
        ("read from", f"{preset.label} ({kind})"),
        ("program", shlex.join(found.program)),
        ("model", _model_text(found.model)),
        ("settings", params_line(command.params) or "none: the runtime decides"),
        ("passed through", shlex.join(_shown_rest(found))),
        ("remote devices", command.rpc),
        ("variables", " ".join(f"{n}={shlex.quote(v)}" for n, v in variables.items())),
        ("runs under", shlex.join(redact_wrapper(found.wrapper))),
        ("chosen by autofit", " ".join(dict.fromkeys(command.address))),
    ]
    width = max(len(name) for name, _ in rows) + 2
    yield from (f"{name:<{width}}{one_line(text)}" for name, text in rows if text)
    yield from (f"notice: {one_line(notice)}" for notice in found.notices)
    model = shlex.quote(str(found.model or "MODEL.gguf"))
    baseline = shlex.quote(output) if output else _preset_arguments(preset)
    yield f"next: autofit tune {model} --baseline {baseline}"


def import_script(found: PresetCommand) -> str:
    """Return the command as a script that autofit reads back as the same command."""
    comments = (f"read by autofit from {found.preset.label}", *found.notices)
    program = [*redact_wrapper(found.wrapper), *found.program]
    lines = ["#!/bin/sh", *(f"# {one_line(comment)}" for comment in comments)]
    return script(lines, redact_variables(found.env), program, _shown_argv(found)[len(program) :])


def _exists(model: Path | None) -> bool:
    try:
        return model is not None and model.is_file()
    except OSError:
        return False


def _model_text(model: Path | None) -> str:
    if model is None:
        return "none named"
    if not _exists(model):
        return f"{model} (not on this machine)"
    return f"{model} ({mib(model.stat().st_size / MIB)})"


def _preset_arguments(preset: ParsedPreset) -> str:
    """Return the arguments that name the preset; `COMMAND` stands for a command."""
    if preset.kind == "command":
        return "COMMAND"
    section = f" --section {shlex.quote(preset.section)}" if preset.section else ""
    return f"{shlex.quote(preset.label)}{section}"
