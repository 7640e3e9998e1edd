"""Keys and tokens on a command line: what autofit keeps of one has none."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
_FLAGS = r"--?(?:api-key|hf-token|hft)"
_FLAG = re.compile(_FLAGS)
_VARIABLE = r"\b\w*(?:API_KEY|TOKEN|SECRET|PASSWORD)"
_VALUE = r"(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\"]\S*)"
_TOLD = re.compile(rf"((?<!\S){_FLAGS}(?:\s+|=)|{_VARIABLE}=){_VALUE}")


def without_secrets(words: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line with keys replaced, also within a word that is a command."""
    kept: list[str] = []
    for word in words:
        follows = bool(kept) and _FLAG.fullmatch(kept[-1]) is not None
        kept.append(HIDDEN if follows else _TOLD.sub(rf"\g<1>{HIDDEN}", word))
    return tuple(kept)
