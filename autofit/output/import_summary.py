"""What `autofit import` tells of a command: for people, as JSON, and as a script."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.presets.option import flag_groups
from autofit.presets.read_preset import ReadPreset
from autofit.runtime.command.argv_reader import ParsedCommand
from autofit.runtime.command.argv_writer import spell_value
from autofit.runtime.discovery.found_runtime import Runtime, format_value
from autofit.text_format import mib, one_line, params_line
from autofit.units import MIB


@dataclass(frozen=True, slots=True)
class Imported:
    """A preset with its command taken apart; `runtime` is the one whose flags were read."""

    preset: ReadPreset
    runtime: Runtime
    command: ParsedCommand
    wrapper: tuple[str, ...]
    model: Path | None
    notices: tuple[str, ...]

    @property
    def program(self) -> str:
        """The program that it names, with its folder where that is known."""
        names = self.runtime.dialect.program.names or (str(self.runtime.program),)
        named = self.preset.argv and self.command.program
        word = self.command.program[-1] if named else names[0]
        if "/" in word and self.preset.folder is not None:
            return str((self.preset.folder / word).absolute())
        return word

    @property
    def started(self) -> tuple[str, ...]:
        """The words that start the program, without a wrapper."""
        words = self.command.program[len(self.wrapper) :]
        return (*words[:-1], self.program) if self.preset.argv else (self.program,)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command as autofit would write it, without address and what is left out."""
        launch, command = self.runtime.dialect.launch, self.command
        remote = (launch.rpc, command.rpc) if command.rpc and launch.rpc else ()
        model = (launch.model, str(self.model)) if self.model else ()
        return (
            *self.wrapper,
            *self.started,
            *remote,
            *model,
            *self._spelled()[0],
            *command.rest,
        )

    @property
    def env(self) -> dict[str, str]:
        """The variables that are set for it."""
        return {**self._spelled()[1], **self.command.env}

    def _spelled(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """The settings as this program spells them, or else as any of its kind does."""
        words: list[str] = []
        variables: dict[str, str] = {}
        for name, value in self.command.params.items():
            known = self.runtime.dialect.parameters[name].spellings
            spelling = self.runtime.spelling(name) or known[0]
            if spelling.words is not None:
                words += spelling.words[format_value(value)]
            elif spelling.flag is not None:
                words += (spelling.flag, spell_value(spelling, value) or "")
            elif spelling.env is not None:
                variables[spelling.env] = spell_value(spelling, value) or ""
        return tuple(words), variables


def import_document(found: Imported) -> dict[str, Any]:
    """What was understood, as JSON data that is itself a preset."""
    command = found.command
    return {
        "schema": 1,
        "source": found.preset.label,
        "kind": found.preset.kind,
        "section": found.preset.section or None,
        "runtime": found.runtime.name,
        "program": list(found.started),
        "model_path": str(found.model) if found.model else None,
        "model_is_there": _is_there(found.model),
        "params": dict(command.params),
        "passed_through": list(command.rest),
        "left_out": list(dict.fromkeys((*command.address, *command.left_out))),
        "rpc": command.rpc or None,
        "env": found.env,
        "wrapper": list(found.wrapper),
        "notices": list(found.notices),
        "argv": list(found.argv),
    }


def import_lines(found: Imported, output: str | None = None) -> Iterator[str]:
    """What was understood, for people; `output` is the file that it is written into."""
    preset, command = found.preset, found.command
    where = f"{preset.kind} `{preset.section}`" if preset.section else preset.kind
    told = [
        ("read from", f"{preset.label} ({where})"),
        ("program", shlex.join(found.started)),
        ("model", _model_words(found.model)),
        ("settings", params_line(command.params) or "none: all is left to the runtime"),
        ("passed through", shlex.join(command.rest)),
        ("remote devices", command.rpc),
        ("variables", " ".join(f"{n}={shlex.quote(v)}" for n, v in command.env.items())),
        ("runs under", shlex.join(found.wrapper)),
        ("autofit's own", " ".join(dict.fromkeys(command.address))),
    ]
    width = max(len(name) for name, _ in told) + 2
    yield from (f"{name:<{width}}{one_line(text)}" for name, text in told if text)
    yield from (f"notice: {one_line(notice)}" for notice in found.notices)
    model = found.model or "MODEL.gguf"
    given = shlex.quote(output) if output else _given(preset)
    yield f"next: autofit tune {shlex.quote(str(model))} --baseline {given}"


def import_script(found: Imported) -> str:
    """The command as a script that autofit reads back as the same."""
    lines = [
        "#!/bin/sh",
        f"# read by autofit from {one_line(found.preset.label)}",
        *(f"# {one_line(notice)}" for notice in found.notices),
        *(f"export {name}={shlex.quote(value)}" for name, value in found.env.items()),
    ]
    start = shlex.join([*found.wrapper, *found.started])
    rest = found.argv[len(found.wrapper) + len(found.started) :]
    groups = [shlex.join(group) for group in flag_groups(rest)]
    return "\n".join([*lines, " \\\n  ".join([f"exec {start}", *groups, '"$@"'])]) + "\n"


def _is_there(model: Path | None) -> bool:
    try:
        return model is not None and model.is_file()
    except OSError:
        return False


def _model_words(model: Path | None) -> str:
    if model is None:
        return "none named"
    if not _is_there(model):
        return f"{model} (not on this machine)"
    return f"{model} ({mib(model.stat().st_size / MIB)})"


def _given(preset: ReadPreset) -> str:
    section = f" --section {shlex.quote(preset.section)}" if preset.section else ""
    # The label of a long command is cut, and only a file can have a section.
    is_command = preset.kind == "command"
    return "COMMAND" if is_command else f"{shlex.quote(preset.label)}{section}"
