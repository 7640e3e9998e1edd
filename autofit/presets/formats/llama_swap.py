"""A configuration of llama-swap, which starts and stops servers on demand.

llama-swap removes comment lines from `cmd` and replaces macros `${NAME}` everywhere. It then
splits the text into words as a POSIX shell does, but expands nothing
(https://github.com/mostlygeek/llama-swap, config-schema.json and docs/configuration.md).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from autofit.errors import UsageError
from autofit.presets.command_options import flag_groups
from autofit.presets.formats.preset_format import PresetFile, PresetFormat
from autofit.presets.formats.shell import command_server
from autofit.presets.formats.variable_expansion import mark_unknown
from autofit.presets.formats.yaml_text import (
    EntryFormat,
    entries_below,
    indented,
    quoted,
    scalar_text,
    set_variables,
)
from autofit.presets.preset import Preset
from autofit.presets.server_entry import ServerEntry
from autofit.text_format import one_line

TOP_KEY = "models"
PORT_MACRO = "${PORT}"
# llama-swap gives up on a model after 120 s; a large one is read from disk for longer.
_LOAD_LIMIT_S = 900
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
# Only with braces: llama-swap leaves `$NAME` as it is.
_MACRO = re.compile(r"\$\{([\w.-]+)\}")
_VARIABLE_PREFIX = "env."
_MOST_MACROS = 20  # they may use each other
_LONGEST = 1 << 16


_FIRST_LINES = (
    "# start with: llama-swap --config THIS_FILE",
    f"healthCheckTimeout: {_LOAD_LIMIT_S}  # seconds that a model may take to load",
    "",
)


def entry_name(preset: Preset) -> str:
    """Return the model's id in requests."""
    plain = " ".join(one_line(preset.model_name).split())
    return re.sub(r"[${}]+", "-", plain).strip(" -") or "model"


def _notices(preset: Preset) -> list[str]:
    own = [
        argument
        for flag, value in preset.given_address.items()
        if value not in preset.address
        for argument in (flag, value)
    ]
    if not own:
        return []
    return [f"llama-swap chooses the address itself, so {shlex.join(own)} is left out"]


def entry_parts(preset: Preset, more_arguments: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the settings of a model by key, each as lines of YAML.

    Raises:
        UsageError: a configuration cannot hold an argument or a variable.
    """
    parts = {"cmd": _command(preset, more_arguments)}
    if preset.env:
        values = [_variable(name, value) for name, value in preset.env.items()]
        parts["env"] = ["env:", *(f"  - {quoted(value)}" for value in values)]
    parts["proxy"] = [f"proxy: http://127.0.0.1:{PORT_MACRO}"]
    return parts


def _command(preset: Preset, more_arguments: Sequence[str]) -> list[str]:
    address = " ".join(argument.replace("{port}", PORT_MACRO) for argument in preset.address)
    start = " ".join(map(_word, (*preset.wrapper, *preset.command)))
    groups = flag_groups((*preset.arguments_at(()), *more_arguments))
    lines = [start, *(" ".join(map(_word, group)) for group in groups), address]
    if all(line.replace("\t", "").isprintable() for line in lines):
        return ["cmd: |", *indented(lines, 2)]
    return [f"cmd: {quoted(' '.join(lines))}"]


def _word(argument: str) -> str:
    if "\n" in argument:
        raise UsageError(
            f"a llama-swap command cannot hold {argument!r}: it has more than one line",
            "change the value, or use the formats `args` or `shell`",
        )
    # Two quoted parts next to each other are one word, but not a macro.
    return shlex.quote(argument).replace("${", "$''{")


def _variable(name: str, value: str) -> str:
    fault = ""
    if not _VARIABLE.fullmatch(name):
        fault = "its name must be in capitals"
    elif "\n" in value or "\r" in value:
        fault = "it has more than one line"
    elif "${" in value:
        fault = "`${` would begin a macro"
    if fault:
        raise UsageError(
            f"a llama-swap configuration cannot hold the variable {name}: {fault}",
            "use the formats `args` or `shell`",
        )
    return f"{name}={value}"


def command_words(text: str) -> list[str]:
    """Return the words of a `cmd` as llama-swap splits it; macros are left as they are.

    Raises:
        ValueError: a quote is not closed.
    """
    lines = [line for line in text.split("\n") if not line.strip().startswith("#")]
    return shlex.split("\n".join(line.rstrip().removesuffix("\\") + " " for line in lines))


def _read(file: PresetFile) -> list[ServerEntry]:
    """Return a server for each model with a command."""
    shared = set_variables((file.data or {}).get("macros"))
    return [
        _server(name, model, shared)
        for name, model in entries_below(file.data, TOP_KEY)
        if "cmd" in model
    ]


def _server(name: str, model: Mapping[str, Any], macros: Mapping[str, str]) -> ServerEntry:
    # llama-swap chooses the port, and autofit while it measures.
    values = {"PORT": "0", "MODEL_ID": name, **macros, **set_variables(model.get("macros"))}
    text = scalar_text(model["cmd"])
    for _ in range(_MOST_MACROS):
        before, text = text, _MACRO.sub(lambda found: _macro(found, values), text)
        if text == before:
            break
        if len(text) > _LONGEST:
            raise ValueError(f"the macros of {name} use each other in a circle")
    text = _MACRO.sub(lambda found: mark_unknown(f"{found[0]} is not a macro of this file"), text)
    env = set_variables(model.get("env"))
    return command_server(ServerEntry(name, tuple(command_words(text)), env))


def _macro(found: re.Match[str], values: Mapping[str, str]) -> str:
    """Return the value of a macro or of a variable `${env.NAME}`, else the text itself."""
    name = found[1]
    if name.startswith(_VARIABLE_PREFIX):
        return os.environ.get(name.removeprefix(_VARIABLE_PREFIX), found[0])
    return values.get(name, found[0])


ENTRIES = EntryFormat(
    TOP_KEY, entry_name, lambda preset: quoted(entry_name(preset)), entry_parts, _notices
)
FORMAT = PresetFormat(
    suffix=".yaml",
    write=partial(ENTRIES.write, _FIRST_LINES),
    holds_several=True,
    # A compose file may have `models` next to its `services`.
    recognizes=lambda file: file.has(TOP_KEY) and not file.has("services"),
    read=_read,
    notices=_notices,
    entry_name=entry_name,
    names_servers=True,
)
