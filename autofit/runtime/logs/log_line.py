"""Log lines: reading them, removing their prefixes, and finding the patterns that match.

A line may have ANSI colours, and prefixes: of a journal or container, a router's `[port]`, a time,
a level. It may also be a JSON document. Files may have any line ends and may be UTF-16.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Generic, TypeVar

from autofit.input_files import parse_json
from autofit.runtime.dialect.log_patterns import LinePattern

# Longer lines are split: no message is that long, and the use of memory stays bounded.
LONGEST = 65_536
_BLOCK = 1 << 20
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Prefixes of other programs: a terminal's clock, journald in any language (also for the kernel),
# docker compose, an ISO time.
_OUTER_PREFIX = (
    r"(?:\[\d\d?:\d\d:\d\d(?: [AP]M)?\] )?"
    r"(?:[^\W\d]{3,}\.? +\d+ [\d:]{8} \S+ (?:kernel|[^\s\[]+\[\d+\]): "
    r"|[\w.-]+ +\| "
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)? )?"
)
_PREFIX = re.compile(
    _OUTER_PREFIX
    + r"(?:\[(?P<source>\d{2,5})\] )?"
    + r"(?:\d+\.\d{2}\.\d{3}\.\d{3} )?"
    + r"(?:[IWED] )?"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A message; `source` is the port of a router's child, otherwise empty."""

    text: str
    source: str = ""


def strip_prefixes(raw: str) -> Iterator[LogLine]:
    """Yield the message of a line; a JSON document may contain several messages."""
    line = raw.rstrip("\r\n")
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    found = _PREFIX.match(line)
    source = ""
    if found:
        source = found["source"] or ""
        line = line[found.end() :]
    message = _json_message(line) if line.startswith("{") else None
    for part in [line] if message is None else message.splitlines():
        yield LogLine(part.rstrip(), source)


def _json_message(line: str) -> str | None:
    try:
        document = parse_json(line)
    except ValueError:
        return None
    return str(document["msg"]) if isinstance(document, dict) and "msg" in document else None


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield the lines of a byte stream, none longer than `LONGEST`.

    Bytes that are not text are replaced. The use of memory does not grow with the stream.
    """
    block = stream.read(_BLOCK)
    decoder = codecs.getincrementaldecoder(_detect_encoding(block))(errors="replace")
    rest = ""
    while block:
        lines = (rest + decoder.decode(block)).split("\n")
        rest = lines.pop()
        for line in lines:
            if len(line) <= LONGEST:
                yield line
            else:
                yield from _split_long(line)
        while len(rest) > LONGEST:
            yield rest[:LONGEST]
            rest = rest[LONGEST:]
        block = stream.read(_BLOCK)
    rest += decoder.decode(b"", final=True)
    if rest:
        yield from _split_long(rest)


def _split_long(line: str) -> Iterator[str]:
    for start in range(0, len(line), LONGEST):
        yield line[start : start + LONGEST]


def _detect_encoding(first: bytes) -> str:
    # PowerShell's `>` writes UTF-16 with a byte order mark, and then every line end contains a
    # zero byte. Without one, the two bytes of the mark are damage in a plain text.
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
    """A line pattern with its compiled regex, and a key of the caller."""

    key: KeyT
    has: tuple[str, ...]
    match: re.Pattern[str] | None

    @classmethod
    def of(cls, key: KeyT, pattern: LinePattern) -> CompiledPattern[KeyT]:
        """Compile a pattern."""
        return cls(key, pattern.has, re.compile(pattern.match) if pattern.match else None)

    def groups(self, text: str) -> Mapping[str, str] | None:
        """Return the named groups found, or None if the line does not match."""
        for literal in self.has:  # faster than any(): this runs for every line
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
    """An index that finds the few patterns that can match a line, in their original order.

    Lines that differ only in digits have one shape, and the patterns of a shape are cached.
    A new shape is first tested for the stems that many texts share.
    """

    def __init__(self, patterns: Iterable[tuple[KeyT, LinePattern]]) -> None:
        self._patterns = tuple(CompiledPattern.of(key, pattern) for key, pattern in patterns)
        self._texts_by_stem = _group_by_stem({text for one in self._patterns for text in one.has})
        self._shapes: dict[bytes, tuple[CompiledPattern[KeyT], ...]] = {}

    def candidates(self, raw: str) -> tuple[CompiledPattern[KeyT], ...]:
        """Return the patterns that can match this line; for most lines none."""
        # Deleting characters from bytes is nine times faster than from text.
        shape = raw.encode("utf-8", "replace").translate(None, _DIGITS)
        known = self._shapes.get(shape)
        if known is not None:
            return known
        text = shape.decode("utf-8")
        stems = [texts for stem, texts in self._texts_by_stem if stem in text]
        present = {has for texts in stems for has in texts if has in text}
        found: tuple[CompiledPattern[KeyT], ...] = ()
        if present:
            found = tuple(one for one in self._patterns if not present.isdisjoint(one.has))
        if len(shape) <= _LONGEST_SHAPE:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            self._shapes[shape] = found
        return found


def _group_by_stem(texts: set[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Group texts by a part that they share.

    The most frequent part comes first, so there are few groups.
    """
    texts_with: dict[str, set[str]] = {}
    for text in texts:
        for start in range(max(1, len(text) - _STEM_LENGTH + 1)):
            texts_with.setdefault(text[start : start + _STEM_LENGTH], set()).add(text)
    groups = []
    while texts_with:
        stem = max(texts_with, key=lambda part: (len(texts_with[part]), part))
        found = texts_with.pop(stem)
        if not found:
            break
        groups.append((stem, tuple(sorted(found))))
        for others in texts_with.values():
            others.difference_update(found)
    return groups
