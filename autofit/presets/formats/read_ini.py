"""llama-server's router presets, `--models-preset FILE`: one section for each model."""

from __future__ import annotations

import re

from autofit.presets.entry import Entry

_SECTION = re.compile(r"\s*\[(.+)\]\s*(?:[;#].*)?")
_DEFAULTS = "*"
# Of the router itself, not of a server that it starts.
_ROUTER_KEYS = frozenset({"version", "load-on-startup", "stop-timeout", "dedup-cache-models"})


def has_section(text: str) -> bool:
    """Whether a line is a section's head."""
    return any(_SECTION.fullmatch(line) for line in text.splitlines())


def entries_of_ini(text: str) -> list[Entry]:
    """Every section but `*`, which holds defaults for all.

    Keys before the first section belong to no model, as the router has it.

    Raises:
        ValueError: a line is neither a section nor a setting.
    """
    sections: dict[str, dict[str, str]] = {}
    name = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith((";", "#")):
            continue
        section = _SECTION.fullmatch(line)
        if section:
            name = section[1].strip()
            sections.setdefault(name, {})
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise ValueError(
                f"line {number}: '{line.strip()}' is neither [section] nor key = value"
            )
        # A value ends at the first of these, quotes or not.
        shown = re.split(r"[;#]", value, maxsplit=1)[0].strip()
        sections.setdefault(name, {})[key.strip()] = shown
    defaults = {**sections.pop("", {}), **sections.pop(_DEFAULTS, {})}
    return [_entry(name, {**defaults, **own}) for name, own in sections.items()]


def _entry(name: str, options: dict[str, str]) -> Entry:
    kept = {key: value for key, value in options.items() if key not in _ROUTER_KEYS}
    variables = {key: value for key, value in kept.items() if key.startswith("LLAMA_")}
    faults = tuple(
        f"'{key}': keys of a router preset have no dashes before them"
        for key in kept
        if key.startswith("-")
    )
    plain = tuple((key, value) for key, value in kept.items() if key not in variables)
    return Entry(name, env=variables, options=plain, faults=faults)
