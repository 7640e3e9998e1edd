"""One line of a log without its dress, and the lines of a log of any size.

A line may carry ANSI colours, the mark of a journal or container, a router's `[port]`, a
time and a level, or be a JSON document; files may have any line ends and be UTF-16.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

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
