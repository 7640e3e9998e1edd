"""Finds the few lines of a log that any pattern could match, at little cost for the others.

Lines that differ only in digits are looked at once: their shape is remembered with the
patterns whose text it holds, mostly none. A new shape is first tested for stems that many
texts have in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from autofit.runtime.dialect.log_pattern import LinePattern

KeyT = TypeVar("KeyT")

_DIGITS = b"0123456789"
_LONGEST_SHAPE = 400
_MOST_SHAPES = 4096
_STEM_LENGTH = 5


@dataclass(frozen=True, slots=True)
class Entry(Generic[KeyT]):
    """A pattern under the key that it was given."""

    key: KeyT
    has: tuple[str, ...]
    match: re.Pattern[str] | None

    @classmethod
    def of(cls, key: KeyT, pattern: LinePattern) -> Entry[KeyT]:
        """The pattern under a key."""
        return cls(key, pattern.has, re.compile(pattern.match) if pattern.match else None)

    def groups(self, text: str) -> Mapping[str, str] | None:
        """The named groups found, None where the line is of another kind."""
        for literal in self.has:
            if literal in text:
                break
        else:
            return None
        if self.match is None:
            return {}
        found = self.match.search(text)
        if found is None:
            return None
        return {name: value for name, value in found.groupdict().items() if value is not None}


class LogIndex(Generic[KeyT]):
    """Patterns by key, in the order given."""

    def __init__(self, patterns: Iterable[tuple[KeyT, LinePattern]]) -> None:
        self._entries = tuple(Entry.of(key, pattern) for key, pattern in patterns)
        self._texts_by_stem = _by_stem({text for entry in self._entries for text in entry.has})
        self._shapes: dict[bytes, tuple[Entry[KeyT], ...]] = {}

    def candidates(self, raw: str) -> tuple[Entry[KeyT], ...]:
        """The patterns of which one could match this line; mostly none."""
        # Bytes, because deleting characters from them is nine times faster than from text.
        shape = raw.encode("utf-8", "replace").translate(None, _DIGITS)
        known = self._shapes.get(shape)
        if known is not None:
            return known
        text = shape.decode("utf-8")
        stems = [texts for stem, texts in self._texts_by_stem if stem in text]
        held = {has for texts in stems for has in texts if has in text}
        found = tuple(e for e in self._entries if not held.isdisjoint(e.has)) if held else ()
        if len(shape) <= _LONGEST_SHAPE:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            self._shapes[shape] = found
        return found


def _by_stem(texts: set[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Every text under a part of it; few parts, by always taking the one that most share."""
    holders: dict[str, set[str]] = {}
    for text in texts:
        for start in range(max(1, len(text) - _STEM_LENGTH + 1)):
            holders.setdefault(text[start : start + _STEM_LENGTH], set()).add(text)
    grouped = []
    while holders:
        stem = max(holders, key=lambda part: (len(holders[part]), part))
        found = holders.pop(stem)
        if not found:
            break
        grouped.append((stem, tuple(sorted(found))))
        for others in holders.values():
            others.difference_update(found)
    return grouped
