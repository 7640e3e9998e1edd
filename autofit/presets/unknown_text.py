"""Marks in place of text that only a shell, compose or systemd can evaluate.

A mark contains the reason. So a command is refused only if a part of it that is used has a mark,
and not for the address or a key, which autofit leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Private characters around the reason, which is written in hexadecimal to survive any splitting.
_MARK = re.compile("\ue001([0-9a-f]*)\ue002")
_PRIVATE = re.compile("[\ue000-\ue002]")


def mark_unknown(reason: str) -> str:
    """Return a mark for text whose value is not known."""
    return f"\ue001{reason.encode(errors='replace').hex()}\ue002"


def unknown_reasons(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the reasons of all marks in some texts, each once."""
    found = (found[1] for text in texts for found in _MARK.finditer(text))
    return tuple(bytes.fromhex(reason).decode() for reason in dict.fromkeys(found))


def without_marks(text: str) -> str:
    """Return a text for messages, with a question mark in place of each mark."""
    return _MARK.sub("?", text)


def without_private(text: str) -> str:
    """Return a user's text without the characters that marks are made of."""
    return _PRIVATE.sub("\ufffd", text)
