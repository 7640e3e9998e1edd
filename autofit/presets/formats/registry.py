"""The formats by name: adding one means a module with `write` and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autofit.errors import UsageError
from autofit.presets.facts import PresetFacts
from autofit.presets.formats import (
    args,
    compose,
    env,
    ini,
    llama_swap,
    preset_json,
    shell,
    systemd,
)

Write = Callable[[PresetFacts], str]
WriteMany = Callable[[Sequence[PresetFacts]], str]


def _nothing(facts: PresetFacts) -> list[str]:
    del facts
    return []


def _model_name(facts: PresetFacts) -> str:
    return facts.model_name


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file.

    `write_many` writes several models into one, None where it holds one only; `entry_name` is
    what it calls a model; `needs` tells what the file cannot say or see to itself.
    """

    suffix: str
    write: Write
    write_many: WriteMany | None = None
    needs: Callable[[PresetFacts], list[str]] = _nothing
    entry_name: Write = _model_name
    is_program: bool = False


FORMATS: Mapping[str, Format] = {
    "ini": Format(".ini", ini.write, ini.write_many, ini.needs, ini.entry_name),
    "llama-swap": Format(
        ".yaml", llama_swap.write, llama_swap.write_many, llama_swap.needs, llama_swap.entry_name
    ),
    "shell": Format(".sh", shell.write, is_program=True),
    "systemd": Format(".service", systemd.write),
    "compose": Format(
        ".yaml", compose.write, compose.write_many, compose.needs, compose.entry_name
    ),
    "env": Format(".env", env.write, needs=env.needs),
    "json": Format(".json", preset_json.write),
    "args": Format(".args", args.write),
}
SUFFIXES: Mapping[str, str] = {name: known.suffix for name, known in FORMATS.items()}


def find_format(name: str) -> Format:
    """The format of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in FORMATS:
        raise UsageError(f"unknown format '{name}'", f"known: {', '.join(FORMATS)}")
    return FORMATS[name]


def write_preset(format_name: str, *presets: PresetFacts) -> str:
    """The text of one preset, or of several in one file, in a format.

    Raises:
        UsageError: the format is unknown, or cannot carry these settings.
    """
    known = find_format(format_name)
    for facts in presets:
        if facts.formats is not None and format_name not in facts.formats:
            raise UsageError(
                f"the runtime of this preset cannot use the format '{format_name}'",
                f"it can use {', '.join(name for name in FORMATS if name in facts.formats)}",
            )
    if len(presets) == 1:
        return known.write(presets[0])
    if known.write_many is None:
        many = (name for name, one in FORMATS.items() if one.write_many is not None)
        raise UsageError(
            f"a file of the format '{format_name}' holds one model",
            f"several go into one file of {', '.join(many)}",
        )
    return known.write_many(presets)
