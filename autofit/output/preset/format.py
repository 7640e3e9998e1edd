"""The formats by name: adding one means a module with `write` and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autofit.errors import UsageError
from autofit.output.preset import args, env, ini, json_document, shell
from autofit.output.preset.facts import PresetFacts

FORMATS: Mapping[str, Callable[[PresetFacts], str]] = {
    "ini": ini.write,
    "args": args.write,
    "json": json_document.write,
    "shell": shell.write,
    "env": env.write,
}
SUFFIXES: Mapping[str, str] = {
    "ini": ".ini",
    "args": ".args",
    "json": ".json",
    "shell": ".sh",
    "env": ".env",
}


def write_preset(format_name: str, facts: PresetFacts) -> str:
    """The preset's text in a format.

    Raises:
        UsageError: the format is unknown, or cannot carry these settings.
    """
    if format_name not in FORMATS:
        raise UsageError(f"unknown format '{format_name}'", f"known: {', '.join(FORMATS)}")
    if facts.formats is not None and format_name not in facts.formats:
        raise UsageError(
            f"the runtime of this preset cannot use the format '{format_name}'",
            f"it can use {', '.join(name for name in FORMATS if name in facts.formats)}",
        )
    return FORMATS[format_name](facts)
