"""Keys and passwords in commands and variables: what a baseline keeps is committed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_MASK = "***"
_SECRET_FLAGS = {"--api-key", "--hf-token", "-hft"}
_SECRET_NAME = re.compile(r"key|token|secret|passw", re.IGNORECASE)


def masked(argv: Sequence[str]) -> tuple[str, ...]:
    """A command whose keys are not told."""
    words: list[str] = []
    for word in argv:
        name, equals, _ = word.partition("=")
        if words and words[-1] in _SECRET_FLAGS:
            words.append(_MASK)
        else:
            words.append(f"{name}={_MASK}" if equals and name in _SECRET_FLAGS else word)
    return tuple(words)


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variables of which those that are named as secrets have no value."""
    return {n: _MASK if _SECRET_NAME.search(n) else value for n, value in env.items()}
