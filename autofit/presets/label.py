"""Short names for what a user gave as a preset, which may be a long command."""

from __future__ import annotations

_MOST = 60
_HEAD = 18
# What is kept of two commands before the first letter in which they differ.
_BEFORE = 20


def shorten(text: str, most: int = _MOST) -> str:
    """A long command cut for a label."""
    plain = " ".join(text.split())
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def shorten_apart(one: str, other: str) -> tuple[str, str]:
    """Two commands cut for labels that differ, unless the commands are the same.

    Where their beginnings are alike they are cut in the middle, so that what differs is read.
    """
    texts = " ".join(one.split()), " ".join(other.split())
    labels = shorten(texts[0]), shorten(texts[1])
    if labels[0] != labels[1] or texts[0] == texts[1]:
        return labels
    alike = next(
        (place for place, (a, b) in enumerate(zip(*texts, strict=False)) if a != b),
        min(map(len, texts)),
    )
    # With the word before, for it may be the flag whose value differs.
    word = texts[0].rfind(" ", 0, alike) + 1
    start = max(texts[0].rfind(" ", 0, max(0, word - 1)) + 1, alike - _BEFORE)
    first, second = (
        f"{text[:_HEAD].rstrip()} ... {shorten(text[start:], _MOST - _HEAD - 5)}" for text in texts
    )
    return first, second
