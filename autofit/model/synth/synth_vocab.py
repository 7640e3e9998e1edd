"""A vocabulary of any size for a model of random weights.

Byte-level byte pair encoding as in GPT-2, so that any text can be tokenized. What a model of
random weights says must be text too: only printable ASCII has a piece, other bytes have tokens
that llama.cpp reads but never shows (token type UNUSED).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from string import ascii_lowercase, ascii_uppercase, digits

NORMAL, CONTROL, UNUSED = 1, 3, 5
END_OF_TEXT = "<|endoftext|>"
_FIRST_UNSEEN = 256  # GPT-2 shows bytes that are no printable character by these and above


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, their types, and the merges; the first `silent` tokens show nothing."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    silent: int

    @property
    def end_of_text(self) -> int:
        """The id of the token that ends a text."""
        return self.silent - 1


def _byte_letters() -> dict[int, str]:
    """GPT-2's way to write any byte as one visible letter."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in visible}
    hidden = (byte for byte in range(256) if byte not in letters)
    letters.update((byte, chr(_FIRST_UNSEEN + rank)) for rank, byte in enumerate(hidden))
    return letters


_LETTERS = _byte_letters()
_SPACE = _LETTERS[0x20]
_SHOWN = [_LETTERS[byte] for byte in range(0x20, 0x7F)]
_SILENT = [_LETTERS[byte] for byte in range(256) if not 0x20 <= byte < 0x7F]  # noqa: PLR2004

SMALLEST = len(_SHOWN) + len(_SILENT) + 1
_PAIRED = ascii_lowercase + ascii_uppercase + digits
LARGEST = SMALLEST + len(ascii_lowercase) + len(_PAIRED) ** 2 + len(_PAIRED) ** 4


def vocabulary(size: int) -> Vocabulary:
    """A vocabulary of so many tokens, `SMALLEST` to `LARGEST`.

    After the bytes come a space with a letter, pairs of letters and digits, and pairs of pairs.
    """
    silent = [*_SILENT, END_OF_TEXT]
    parts = list(islice(_merged(), size - SMALLEST))
    tokens = [*silent, *_SHOWN, *(left + right for left, right in parts)]
    types = [UNUSED] * len(_SILENT) + [CONTROL] + [NORMAL] * (size - len(silent))
    return Vocabulary(
        tokens=tuple(tokens),
        types=tuple(types),
        merges=tuple(f"{left} {right}" for left, right in parts),
        silent=len(silent),
    )


def _merged() -> Iterator[tuple[str, str]]:
    """What is put together, in the order of merging; small letters first."""
    yield from product([_SPACE], ascii_lowercase)
    pairs = [*product(ascii_lowercase, ascii_lowercase)]
    known = set(pairs)
    pairs += [pair for pair in product(_PAIRED, _PAIRED) if pair not in known]
    yield from pairs
    joined = ["".join(pair) for pair in pairs]
    yield from product(joined, joined)
