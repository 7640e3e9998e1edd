"""Keys and tokens in commands and variables: what autofit keeps of them has none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "***"
_FLAGS = r"--?(?:api-key|hf-token|hft)"
_FLAG = re.compile(_FLAGS)
_VARIABLE = r"\b\w*(?:API_KEY|TOKEN|SECRET|PASSWORD)"
_VALUE = r"(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\"]\S*)"
_SECRET_NAME = re.compile(r"key|token|secret|passw", re.IGNORECASE)
_TOLD = re.compile(rf"((?<!\S){_FLAGS}(?:\s+|=)|{_VARIABLE}=){_VALUE}")


def redact_command(words: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line with keys replaced, also within a word that is a command."""
    kept: list[str] = []
    for word in words:
        follows = bool(kept) and _FLAG.fullmatch(kept[-1]) is not None
        kept.append(HIDDEN if follows else _TOLD.sub(rf"\g<1>{HIDDEN}", word))
    return tuple(kept)


def redact_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Variables of which those that are named as secrets have their value replaced."""
    return {name: HIDDEN if _SECRET_NAME.search(name) else env[name] for name in env}
