"""Expansion of `${NAME:-default}` and `$NAME`, and marks in place of text that is not known.

Only a shell, compose or systemd can evaluate some texts. A mark replaces such a text and contains
the reason. autofit refuses a command if a part that it uses has a mark. A mark in the address or
the API key does not matter, because autofit leaves these out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

# A name, or the number of an argument: nothing gives a script arguments here.
_PARAMETER = re.compile(
    r"(?P<name>[A-Za-z_]\w*|\d+|[@*])(?:(?P<mark>:?[-=?+])(?P<word>.*))?", re.DOTALL
)
_EXPANSION = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<inner>[^{}]*)\}|(?P<plain>[A-Za-z_]\w*))")
# Private characters around the reason, which is written in hexadecimal to survive any splitting.
_MARK = re.compile("\ue001((?:[0-9a-f]{2})*)\ue002")
_PRIVATE = re.compile("[\ue000-\ue002]")


def parameter_value(inner: str, values: Mapping[str, str]) -> str | None:
    """Return the value of the text between `${` and `}`, or None if it is not known.

    That text is a name alone, or a name with a default (`:-`, `-`, `:=`, `=`) or with a
    replacement (`:+`, `+`).
    """
    found = _PARAMETER.fullmatch(inner)
    if found is None:
        return None
    value = values.get(found["name"])
    mark = found["mark"] or ""
    if mark.endswith("+"):
        return found["word"] if value or (value is not None and mark == "+") else ""
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


def mark_unknown(reason: str) -> str:
    """Return a mark for text whose value is not known."""
    return f"\ue001{reason.encode(errors='replace').hex()}\ue002"


def unknown_reasons(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the reasons of all marks in some texts, each once."""
    found = (found[1] for text in texts for found in _MARK.finditer(text))
    return tuple(bytes.fromhex(reason).decode(errors="replace") for reason in dict.fromkeys(found))


def without_marks(text: str) -> str:
    """Return a text for messages, with a question mark in place of each mark."""
    return _MARK.sub("?", text)


def without_private(text: str) -> str:
    """Return a user's text without the characters that marks are made of."""
    return _PRIVATE.sub("\ufffd", text)
