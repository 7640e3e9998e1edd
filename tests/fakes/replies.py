"""Tokens and text of the fake: the same prompt and seed always give the same answer.

A token is a byte as long as its id is below 256, and a word above. Answers do not depend on
where layers lie or how prompts are cut; a narrow KV type may change some of them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

_LETTERS = b" etaoinshrdlu,.\n"


def tokenize(text: str) -> list[int]:
    """One token per byte."""
    return list(text.encode())


def piece(token: int) -> bytes:
    """The bytes a token stands for."""
    return bytes((token,)) if token < 256 else b" w%d" % token


def detokenize(tokens: Sequence[int]) -> str:
    """Text of tokens; broken characters become replacement marks."""
    return b"".join(piece(token) for token in tokens).decode("utf-8", "replace")


def _mix(*values: Any) -> int:
    return zlib.crc32("/".join(map(str, values)).encode())


class Replies:
    """Answers under one KV type."""

    def __init__(
        self, n_vocab: int, change: float = 0.0, logprob_error: float = 0.0, salt: str = ""
    ) -> None:
        self.n_vocab, self.change, self.error, self.salt = n_vocab, change, logprob_error, salt

    def _pick(self, digest: int, position: int) -> int:
        letter = _LETTERS[digest % len(_LETTERS)]
        if digest % 5 == 0 and self.n_vocab > 300:
            return 256 + digest // 7 % min(self.n_vocab - 258, 2000)
        return letter if position else 32

    def tokens(self, prompt: Sequence[int], count: int, seed: int, *, greedy: bool) -> list[int]:
        """Return the tokens generated after a prompt."""
        start = zlib.crc32(b",".join(b"%d" % token for token in prompt))
        start = _mix(start, "" if greedy else seed, self.salt)
        made = []
        state = start
        for position in range(count):
            state = _mix(state, position)
            token = self._pick(state, position)
            if self.change and _mix(state, "kv") % 10_000 < self.change * 10_000:
                token = self._pick(state + 1, position)
            made.append(token)
        return made

    def top(self, prompt: Sequence[int], position: int, token: int, count: int) -> list[Any]:
        """(token, logprob) of the likeliest tokens, the chosen one first."""
        digest = _mix(zlib.crc32(b",".join(b"%d" % t for t in prompt[-64:])), position)
        candidates = [token]
        step = 1
        while len(candidates) < min(count, self.n_vocab):
            other = (token + step * (1 + digest % 13)) % self.n_vocab
            step += 1
            if other not in candidates:
                candidates.append(other)
        sure = 0.3 + digest % 500 / 1000.0
        shift = self.error * (1 if digest % 2 else -1)
        sure = min(0.97, max(0.05, sure + shift))
        left = 1.0 - sure
        out = []
        for rank, candidate in enumerate(candidates):
            share = sure if rank == 0 else left * 0.5**rank
            out.append((candidate, math.log(share)))
        return out
