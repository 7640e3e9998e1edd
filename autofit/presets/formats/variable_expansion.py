"""Expansion of `${NAME:-default}` and `$NAME`, as in shells, compose files and systemd units."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from autofit.presets.unknown_text import mark_unknown

_PARAMETER = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:(?P<mark>:?[-=?])(?P<word>.*))?", re.DOTALL)
_EXPANSION = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<inner>[^{}]*)\}|(?P<plain>[A-Za-z_]\w*))")


def parameter_value(inner: str, values: Mapping[str, str]) -> str | None:
    """Return the value of the text between `${` and `}`, None where it is not known.

    That text is a name alone, or a name with a default (`:-`, `-`, `:=`, `=`).
    """
    found = _PARAMETER.fullmatch(inner)
    if found is None:
        return None
    value = values.get(found["name"])
    mark = found["mark"] or ""
    if value or (value is not None and not mark.startswith(":")):
        return value
    return found["word"] if mark.endswith(("-", "=")) else None


def expand(text: str, value_of: Callable[[str], str | None], place: str) -> str:
    """Return the text with its `${...}` and `$NAME` replaced.

    `$$` becomes a dollar. An expansion without a value in `place` is marked as unknown.
    """

    def value(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        known = value_of(found["plain"] if found["inner"] is None else found["inner"])
        return mark_unknown(f"{found[0]} has no value in {place}") if known is None else known

    return _EXPANSION.sub(value, text)
