"""The vocabulary of synthesized models.

It is byte-level byte pair encoding, as in GPT-2, so that it can encode any text. Answers of random
weights must be text too: only printable ASCII has visible tokens, and other bytes have tokens
that llama.cpp reads but never shows (token type UNUSED).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from string import ascii_lowercase, ascii_uppercase, digits

NORMAL, CONTROL, UNUSED = 1, 3, 5  # token types of llama.cpp
END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, their types, and the merges; the first `hidden` tokens print nothing."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    hidden: int

    @property
    def end_of_text(self) -> int:
        """Id of the token that ends a text."""
        return self.hidden - 1


def _byte_letters() -> dict[int, str]:
    """Return the visible letter by which GPT-2 writes each byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in visible}
    others = (byte for byte in range(256) if byte not in letters)
    letters.update((byte, chr(256 + rank)) for rank, byte in enumerate(others))
    return letters


_LETTERS = _byte_letters()
_SPACE = _LETTERS[0x20]
_SHOWN = [_LETTERS[byte] for byte in range(0x20, 0x7F)]
_HIDDEN = [_LETTERS[byte] for byte in range(256) if not 0x20 <= byte < 0x7F]  # noqa: PLR2004
_PAIRED = ascii_lowercase + ascii_uppercase + digits

SMALLEST_VOCABULARY = len(_SHOWN) + len(_HIDDEN) + 1
LARGEST_VOCABULARY = (
    SMALLEST_VOCABULARY + len(ascii_lowercase) + len(_PAIRED) ** 2 + len(_PAIRED) ** 4
)


def build_vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary of `SMALLEST_VOCABULARY` to `LARGEST_VOCABULARY` tokens.

    After the bytes come a space with a letter, pairs of letters and digits, and pairs of pairs.
    """
    hidden = [*_HIDDEN, END_OF_TEXT]
    parts = list(islice(_merges(), size - SMALLEST_VOCABULARY))
    tokens = [*hidden, *_SHOWN, *(left + right for left, right in parts)]
    types = [UNUSED] * len(_HIDDEN) + [CONTROL] + [NORMAL] * (size - len(hidden))
    return Vocabulary(
        tokens=tuple(tokens),
        types=tuple(types),
        merges=tuple(f"{left} {right}" for left, right in parts),
        hidden=len(hidden),
    )


def _merges() -> Iterator[tuple[str, str]]:
    """Yield the two parts of each merged token, in the order of merging."""
    yield from product([_SPACE], ascii_lowercase)
    pairs = [*product(ascii_lowercase, ascii_lowercase)]
    known = set(pairs)
    pairs += [pair for pair in product(_PAIRED, _PAIRED) if pair not in known]
    yield from pairs
    joined = ["".join(pair) for pair in pairs]
    yield from product(joined, joined)
