"""The removal of keys and tokens from commands and variables before they are stored or shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "***"
_FLAGS = r"--?(?:api-key|hf-token|hft)"
_FLAG = re.compile(_FLAGS)
_VARIABLE = r"\b\w*(?:API_KEY|TOKEN|SECRET|PASSWORD)"
_VALUE = r"(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\"]\S*)"
_ASSIGNMENT = re.compile(rf"((?<!\S){_FLAGS}(?:\s+|=)|{_VARIABLE}=){_VALUE}")
_SECRET_NAME = re.compile(r"key|token|secret|passw", re.IGNORECASE)


def redact_command(words: Iterable[str]) -> tuple[str, ...]:
    """Replace secret keys in a command line, also inside a word that is itself a command."""
    kept: list[str] = []
    for word in words:
        is_value = bool(kept) and _FLAG.fullmatch(kept[-1]) is not None
        kept.append(HIDDEN if is_value else _ASSIGNMENT.sub(rf"\g<1>{HIDDEN}", word))
    return tuple(kept)


def redact_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Replace the values of variables whose names mark them as secret."""
    return {name: HIDDEN if _SECRET_NAME.search(name) else env[name] for name in env}
