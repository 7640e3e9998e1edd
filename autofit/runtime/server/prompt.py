"""Prompts of an exact number of tokens, cut from real text.

Real text, because the experts that a mixture routes to, and so the speed of caches and of
expert uploads, depend on it: random tokens are unrealistically uniform.
"""

from __future__ import annotations

from pathlib import Path

from autofit.errors import UsageError
from autofit.runtime.server.client import Client, RequestFailure
from autofit.trial.workload import Workload
from autofit.yaml_files import bundled_root

SHIPPED_TEXT = Path("search_spaces") / "workloads" / "prompt.txt"

# Consecutive prompts begin this share of the text apart, so that none repeats another's
# beginning; an irrational step never comes back to where it was.
_STEP = 0.6180339887498949


def read_text(workload: Workload) -> str:
    """The text that prompts are cut from.

    Raises:
        UsageError: the workload's own text cannot be read or is empty.
    """
    path = Path(workload.text).expanduser() if workload.text else bundled_root() / SHIPPED_TEXT
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"cannot read the prompt text {path}: {error.strerror}",
            "`text` in the workload file is the path of a plain text file",
        ) from error
    if not text.strip():
        raise UsageError(f"the prompt text {path} is empty", "give a text of some pages")
    return text


class PromptSource:
    """Cuts prompts out of a text that the model's own tokenizer has read once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[int] = []
        self._cut = 0

    def prepare(self, client: Client) -> RequestFailure | None:
        """Have the text tokenized, once for all launches of a model."""
        if self._tokens:
            return None
        tokens = client.tokenize(self._text)
        if isinstance(tokens, RequestFailure):
            return tokens
        if not tokens:
            return RequestFailure("malformed", "prompt", "the server made no tokens of a text")
        self._tokens = tokens
        return None

    def cut(self, length: int) -> list[int]:
        """The next prompt, `length` tokens; a text that is too short goes round."""
        size = len(self._tokens)
        start = int(size * ((self._cut * _STEP) % 1.0))
        self._cut += 1
        rounds = self._tokens[start:] + self._tokens[:start]
        return (rounds * (length // size + 1))[:length]

    def fixed(self, length: int) -> list[int]:
        """The text's beginning, the same at every call: for comparing answers."""
        size = len(self._tokens)
        return (self._tokens * (length // size + 1))[:length]
