"""llama-swap's configuration, and compose files: YAML in which servers have names.

llama-swap: https://github.com/mostlygeek/llama-swap, `config-schema.json`; its `cmd` is no
shell text: lines are joined and split into words. Compose: https://compose-spec.io.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autofit.presets.entry import Entry
from autofit.presets.formats.container import server_words, with_host_paths
from autofit.presets.formats.read_command import entry_of_words
from autofit.presets.formats.variables import file_variables, filled, parameter_value

# Only with braces: llama-swap leaves `$NAME` as it is.
_MACRO = re.compile(r"\$\{([\w.-]+)\}")
_MOST_MACROS = 20  # they may use each other
_LONGEST = 1 << 16


def is_known(data: object) -> bool:
    """Whether it is data of one of the two kinds of file."""
    return isinstance(data, Mapping) and bool({"models", "services"} & set(data))


def entries_of_data(data: Mapping[str, Any], folder: Path) -> list[Entry]:
    """Every server of a file in a folder, by the name it has there.

    Raises:
        TypeError: the file has another shape.
        ValueError: quotes are not closed.
    """
    key = "models" if "models" in data else "services"
    parts = data[key]
    if not isinstance(parts, Mapping):
        raise TypeError(f"`{key}` is no list of names")
    entries = []
    for name, part in parts.items():
        if isinstance(part, Mapping):
            read = _swap_entry if key == "models" else _compose_entry
            found = read(str(name), part, data, folder)
            entries += [found] if found else []
    return entries


def _swap_entry(
    name: str, part: Mapping[str, Any], data: Mapping[str, Any], _folder: Path
) -> Entry | None:
    if "cmd" not in part:
        return None
    macros = {**_settings(data.get("macros")), **_settings(part.get("macros"))}
    # The port is llama-swap's to choose, and autofit's while measuring.
    known = {"PORT": "0", "MODEL_ID": name, **macros}
    lines = _text(part["cmd"]).replace("\\\n", "\n").splitlines()
    text = " ".join(line for line in lines if not line.lstrip().startswith("#"))
    for _ in range(_MOST_MACROS):
        before = text
        text = _MACRO.sub(lambda found: known.get(found[1], found[0]), text)
        if text == before:
            break
        if len(text) > _LONGEST:
            raise ValueError(f"the macros of {name} use each other without end")
    env = _settings(part.get("env"))
    found = entry_of_words(name, shlex.split(text), env)
    faults = [f"{found[0]} is no macro of this file" for found in _MACRO.finditer(text)]
    return replace(found, faults=(*found.faults, *faults))


def _compose_entry(
    name: str, part: Mapping[str, Any], _data: Mapping[str, Any], folder: Path
) -> Entry | None:
    image = _text(part.get("image", ""))
    given, notes = _Given(folder), list[str]()
    words = [*given.words(part.get("entrypoint")), *given.words(part.get("command"))]
    if not words and "llama" not in image:
        return None
    env = {key: given.text(value) for key, value in _settings(part.get("environment")).items()}
    if part.get("env_file") is not None:
        notes.append("env_file is not read: what it sets is not known")
    if any(key in part for key in ("cpus", "cpuset", "mem_limit")):
        notes.append("limits of the container do not hold where autofit measures")
    volumes = [_volume(one) for one in _listed(part.get("volumes"))]
    found = entry_of_words(name, server_words(words, image), env)
    argv = with_host_paths(found.argv, [given.text(volume) for volume in volumes], folder)
    variable = "LLAMA_ARG_MODEL"
    if variable in env:
        (env[variable],) = with_host_paths([env[variable]], volumes, folder)
    where = f"runs in the container {image}" if image else "runs in a container"
    faults = [f"{one} has no value in this file" for one in given.missing]
    return replace(
        found, argv=argv, env=env, notes=(*found.notes, *notes, where),
        faults=(*found.faults, *faults), in_container=True,
    )  # fmt: skip


class _Given:
    """Texts of a compose file, with variables of the `.env` beside it filled in."""

    def __init__(self, folder: Path) -> None:
        self.values = _dot_env(folder / ".env")
        self.missing: list[str] = []

    def text(self, value: object) -> str:
        def value_of(inner: str) -> str | None:
            return parameter_value(inner, self.values)

        text, missing = filled(_text(value), value_of)
        self.missing += missing
        return text

    def words(self, value: object) -> list[str]:
        """A command as compose has it: a list, or a text that is split as a shell would."""
        if value is None:
            return []
        if isinstance(value, str):
            return shlex.split(self.text(value))
        return [self.text(one) for one in _listed(value)]


def _dot_env(path: Path) -> dict[str, str]:
    try:
        return file_variables(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return {}


def _volume(one: object) -> str:
    if isinstance(one, Mapping):
        return f"{_text(one.get('source', ''))}:{_text(one.get('target', ''))}"
    return _text(one)


def _settings(value: object) -> dict[str, str]:
    """Names and texts, given as a mapping or as a list of `NAME=TEXT`."""
    if isinstance(value, Mapping):
        return {str(name): _text(text) for name, text in value.items() if text is not None}
    pairs = (_text(one).partition("=") for one in _listed(value))
    return {name: text for name, equals, text in pairs if equals}


def _listed(value: object) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        return list(value)
    return [value]


def _text(value: object) -> str:
    """A plain value as text; parts that hold others may be endless, and stand for no text.

    Raises:
        TypeError: it is a list or a mapping.
    """
    if not isinstance(value, str | bool | int | float):
        raise TypeError("there is a list or a mapping where a text should be")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
