"""Environment variables (`LLAMA_ARG_*`) for a server that is started without arguments.

Values are quoted for a POSIX shell (`set -a; . FILE`), systemd's `EnvironmentFile` and compose's
`env_file`, which agree on single quotes. `docker run --env-file` knows no quotes.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from autofit.presets.command_options import (
    CPU_MOE,
    N_CPU_FFN,
    N_CPU_MOE,
    OVERRIDE_TENSOR,
    Option,
)
from autofit.presets.formats.preset_format import PresetFormat
from autofit.presets.preset import Preset
from autofit.presets.preset_heading import heading
from autofit.presets.server_entry import ServerEntry

# Variables are read in the order of the help text.
_APPLIED_OVERRIDES = (OVERRIDE_TENSOR, CPU_MOE, N_CPU_MOE, N_CPU_FFN)


def _write(presets: Sequence[Preset]) -> str:
    """Return a file of variables; a comment names the arguments that have none."""
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


def file_variables(text: str) -> dict[str, str]:
    """Return the variables of a file of `NAME=VALUE` lines, as systemd, compose and docker do.

    A value in quotes is unquoted as in a shell. Any other value is the rest of its line.
    """
    variables = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or name.startswith(("#", ";")):
            continue
        value = value.strip()
        try:
            plain = "".join(shlex.split(value)) if value[:1] in ("'", '"') else value
        except ValueError:
            plain = value
        variables[name.strip()] = plain
    return variables


FORMAT = PresetFormat(
    suffix=".env",
    write=_write,
    recognizes=lambda file: file.data is None and file.path.suffix == ".env",
    read=lambda file: [ServerEntry("variables", env=file_variables(file.text))],
    notices=_notices,
)
