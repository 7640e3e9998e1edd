"""`${NAME:-default}` and its kin, as shells, compose and systemd files have them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

_PARAMETER = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:(?P<mark>:?[-=?])(?P<word>.*))?", re.DOTALL)
_FILLED = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<inner>[^{}]*)\}|(?P<plain>[A-Za-z_]\w*))")


def parameter_value(inner: str, values: Mapping[str, str]) -> str | None:
    """The value of what stands between `${` and `}`; None where it is not known.

    Understood are a name alone and a name with a default (`:-`, `-`, `:=`, `=`).
    """
    found = _PARAMETER.fullmatch(inner)
    if found is None:
        return None
    value = values.get(found["name"])
    mark = found["mark"] or ""
    is_missing = value is None or (mark.startswith(":") and not value)
    if not is_missing:
        return value
    return found["word"] if mark.endswith(("-", "=")) else None


def file_variables(text: str) -> dict[str, str]:
    """What a file of `NAME=VALUE` lines sets, read as systemd, compose and docker agree to.

    A value in quotes is unquoted as a shell would, any other goes on to the end of its line.
    """
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or name.startswith(("#", ";")):
            continue
        value = value.strip()
        try:
            found[name.strip()] = "".join(shlex.split(value)) if value[:1] in "'\"" else value
        except ValueError:
            found[name.strip()] = value
    return found


def filled(text: str, value_of: Callable[[str], str | None]) -> tuple[str, list[str]]:
    """The text with its `${...}` and `$NAME` replaced, and those that have no value.

    `$$` stands for a dollar. What has no value is left as it is.
    """
    missing: list[str] = []

    def replaced(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        inner = found["inner"] if found["inner"] is not None else found["plain"]
        value = value_of(inner)
        if value is None:
            missing.append(found[0])
            return found[0]
        return value

    return _FILLED.sub(replaced, text), missing
