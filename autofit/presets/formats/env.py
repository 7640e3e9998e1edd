"""Environment variables (`LLAMA_ARG_*`) for a server that is started without arguments.

Values are quoted for a POSIX shell (`set -a; . FILE`), systemd's `EnvironmentFile` and compose's
`env_file`, which agree on single quotes. `docker run --env-file` knows no quotes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from autofit.input_files import read_input
from autofit.presets.command_options import (
    CPU_MOE,
    N_CPU_FFN,
    N_CPU_MOE,
    OVERRIDE_TENSOR,
    Option,
)
from autofit.presets.formats.preset_format import LARGEST_BYTES, PresetFile, PresetFormat
from autofit.presets.preset import Preset
from autofit.presets.preset_heading import heading
from autofit.presets.server_entry import ServerEntry

# The program that reads a file of variables; compose reads it as a shell does.
Reader = Literal["shell", "systemd", "docker"]
_NAME = re.compile(r"[A-Za-z_]\w*")
# A comment, or a name with or without a value, which may begin with a quoted word.
_LINE = re.compile(
    r"""[ \t]*(?:
      [\#;][^\n]*
    | (?:export[ \t])?[ \t]*(?P<name>[^=\n]*?)[ \t]*
      (?:=(?P<value>[ \t]*(?=['"])(?:'[^']*'|"(?:[^"\\]|\\.)*"|[^\s'"])+[^\n]*|[^\n]*))?
    )(?:\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)
# Variables are read in the order of the help text.
_APPLIED_OVERRIDES = (OVERRIDE_TENSOR, CPU_MOE, N_CPU_MOE, N_CPU_FFN)


def _write(presets: Sequence[Preset]) -> str:
    """Return a file of variables; a comment names the arguments that no variable can hold."""
    (preset,) = presets
    options = preset.options(_APPLIED_OVERRIDES)
    variables = {option.flag.env: _value(option) for option in options if option.flag.env}
    lines = [f"# {line}" for line in heading(preset, _notices(preset))]
    variables |= preset.env
    lines += [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join(lines) + "\n"


def _value(option: Option) -> str:
    if option.value is not None:
        return option.value
    return "false" if option.is_negative else "true"


def _notices(preset: Preset) -> list[str]:
    notices = []
    if arguments := arguments_without_variable(preset):
        notices.append(f"these have no variable, give them as arguments: {shlex.join(arguments)}")
    if preset.wrapper:
        notices.append(f"run under: {shlex.join(preset.wrapper)}")
    return notices


def arguments_without_variable(preset: Preset) -> tuple[str, ...]:
    """Return the arguments of a preset that no variable can hold."""
    options = (o for o in preset.options(_APPLIED_OVERRIDES) if o.flag.env is None)
    return tuple(argument for option in options for argument in option.arguments)


def file_variables(text: str, reader: Reader = "shell") -> dict[str, str | None]:
    """Return the variables of a file of `NAME=VALUE` lines, or None for a `NAME` alone.

    A value in quotes is unquoted as in a shell, and can have several lines. Any other value is the
    rest of its line. A shell and compose end such a value at a comment. `docker run` takes every
    value as it is, with its quotes.
    """
    if reader == "docker":
        lines = [line.strip() for line in text.split("\n") if not line.lstrip().startswith("#")]
        pairs = [line.partition("=") for line in lines if line]
        return {name: value if equals else None for name, equals, value in pairs}
    variables: dict[str, str | None] = {}
    for found in _LINE.finditer(text):
        name, value = found["name"], found["value"]
        if value is None:
            if _NAME.fullmatch(name or ""):
                variables[name] = None
        else:
            variables[name] = _unquoted(value.strip(), reader)
    return variables


def _unquoted(value: str, reader: Reader) -> str:
    has_comments = reader == "shell"
    if value[:1] not in ("'", '"'):
        return re.split(r"(?:^|\s)#", value)[0].rstrip() if has_comments else value
    try:
        return "".join(shlex.split(value, comments=has_comments))
    except ValueError:  # the quote has no end
        return value


def known_variables(
    given: Mapping[str, str | None], defaults: Mapping[str, str | None] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Return the variables that have a value or a default, and a notice for each that has none."""
    values = {name: (defaults or {}).get(name) if v is None else v for name, v in given.items()}
    known = {name: value for name, value in values.items() if value is not None}
    return known, [f"{name} is not set: no value is given for it"
                   for name in values if name not in known]  # fmt: skip


def read_env_file(path: Path, reader: Reader = "shell") -> tuple[dict[str, str], list[str]]:
    """Return the variables of an environment file to which a preset refers, and notices."""
    try:
        text = read_input(path, LARGEST_BYTES).decode("utf-8", "surrogateescape")
        variables, notices = known_variables(file_variables(text, reader))
    except (OSError, ValueError):
        return {}, [f"{path} cannot be read, so its variables are not known"]
    quoted = [name for name, value in variables.items() if value[:1] in ("'", '"')]
    if reader == "docker" and quoted:
        notices.append(f"docker keeps the quotes of {', '.join(quoted)} in {path}")
    return variables, notices


def _read(file: PresetFile) -> list[ServerEntry]:
    variables, notices = known_variables(file_variables(file.text))
    return [ServerEntry("variables", env=variables, notices=tuple(notices))]


FORMAT = PresetFormat(
    suffix=".env",
    write=_write,
    recognizes=lambda file: file.data is None and file.path.suffix == ".env",
    read=_read,
    notices=_notices,
)
