"""One line of a log without its dress, and the lines of a log of any size.

A line may carry ANSI colours, the mark of a journal or container, a router's `[port]`, a
time and a level, or be a JSON document; files may have any line ends and be UTF-16.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Generic, TypeVar

from autofit.runtime.dialect.log_patterns import LinePattern

# Longer lines are cut into pieces: no message is that long, and memory stays bounded.
LONGEST = 65_536
_BLOCK = 1 << 20
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What stands before a runtime's own line: journald, docker compose, an ISO time.
_OUTER = (
    r"(?:[A-Z][a-z]{2} +\d+ [\d:]{8} \S+ [^\s\[]+\[\d+\]: "
    r"|[\w.-]+ +\| "
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)? )?"
)
_DRESS = re.compile(
    _OUTER + r"(?:\[(?P<source>\d{2,5})\] )?" + r"(?:\d+\.\d{2}\.\d{3}\.\d{3} )?" + r"(?:[IWED] )?"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A message; `source` is the port of a router's child, or empty."""

    text: str
    source: str = ""


def strip_prefixes(raw: str) -> Iterator[LogLine]:
    """The messages of one line: one, but for a JSON document that holds several lines."""
    line = raw.rstrip("\r\n")
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    found = _DRESS.match(line)
    source = ""
    if found:
        source = found["source"] or ""
        line = line[found.end() :]
    message = _json_message(line) if line.startswith("{") else None
    for part in [line] if message is None else message.splitlines():
        yield LogLine(part.rstrip(), source)


def _json_message(line: str) -> str | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return str(document["msg"]) if isinstance(document, dict) and "msg" in document else None


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """The lines of a byte stream, decoded leniently, none longer than `LONGEST`.

    Memory does not grow with the stream.
    """
    block = stream.read(_BLOCK)
    decoder = codecs.getincrementaldecoder(_encoding(block))(errors="replace")
    rest = ""
    while block:
        lines = (rest + decoder.decode(block)).split("\n")
        rest = lines.pop()
        for line in lines:
            if len(line) <= LONGEST:
                yield line
            else:
                yield from _pieces(line)
        while len(rest) > LONGEST:
            yield rest[:LONGEST]
            rest = rest[LONGEST:]
        block = stream.read(_BLOCK)
    rest += decoder.decode(b"", final=True)
    if rest:
        yield from _pieces(rest)


def _pieces(line: str) -> Iterator[str]:
    for start in range(0, len(line), LONGEST):
        yield line[start : start + LONGEST]


def _encoding(first: bytes) -> str:
    # PowerShell's `>` writes UTF-16 with a byte order mark, and every line end holds a zero.
    # A log that merely begins with these two bytes is one with damaged bytes.
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and (
        b"\n" not in first or b"\0" in first
    ):
        return "utf-16"
    return "utf-8-sig"


KeyT = TypeVar("KeyT")

_DIGITS = b"0123456789"
_LONGEST_SHAPE = 400
_MOST_SHAPES = 4096
_STEM_LENGTH = 5


@dataclass(frozen=True, slots=True)
class CompiledPattern(Generic[KeyT]):
    """A pattern under the key that it was given."""

    key: KeyT
    has: tuple[str, ...]
    match: re.Pattern[str] | None

    @classmethod
    def of(cls, key: KeyT, pattern: LinePattern) -> CompiledPattern[KeyT]:
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


class PatternIndex(Generic[KeyT]):
    """Patterns by key, in the order given."""

    def __init__(self, patterns: Iterable[tuple[KeyT, LinePattern]]) -> None:
        self._entries = tuple(CompiledPattern.of(key, pattern) for key, pattern in patterns)
        self._texts_by_stem = _by_stem({text for entry in self._entries for text in entry.has})
        self._shapes: dict[bytes, tuple[CompiledPattern[KeyT], ...]] = {}

    def candidates(self, raw: str) -> tuple[CompiledPattern[KeyT], ...]:
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
