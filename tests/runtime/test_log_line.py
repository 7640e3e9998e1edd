"""Log lines: prefixes, encodings, and the index of patterns."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.log_corpus import all_cases

from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.dialect.log_patterns import LinePattern
from autofit.runtime.logs.log_line import (
    LONGEST,
    CompiledPattern,
    LogLine,
    PatternIndex,
    read_lines,
    strip_prefixes,
)
from autofit.runtime.logs.log_reader import make_handlers


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ("srv  llama_server: model loaded", LogLine("srv  llama_server: model loaded")),
        ("0.10.328.945 I srv  x: y", LogLine("srv  x: y")),
        ("0.10.328.945 E x\r\n", LogLine("x")),
        ("[34157] 0.10.328.945 W x", LogLine("x", "34157")),
        ("[34157] x", LogLine("x", "34157")),
        ("\x1b[34m0.00.004.328\x1b[0m \x1b[32mI \x1b[0msrv  x", LogLine("srv  x")),
        ("Oct 12 08:15:03 box llama-server[4711]: 0.10.328.945 E x", LogLine("x")),
        ("llama-1  | 0.10.328.945 E x", LogLine("x")),
        ("2026-10-12T08:15:03.123Z 0.10.328.945 E x", LogLine("x")),
        ("2026-10-12T08:15:03+02:00 [34157] 0.10.328.945 E x", LogLine("x", "34157")),
        ('{"type":"log","time":1,"level":"warn","msg":"a \\"b\\"\\n"}', LogLine('a "b"')),
        ('{"not": "a log"}', LogLine('{"not": "a log"}')),
        ("{broken", LogLine("{broken")),
        ("  CUDA0: NVIDIA H200", LogLine("  CUDA0: NVIDIA H200")),
        ("", LogLine("")),
    ],
)
def test_prefixes_are_removed(raw: str, line: LogLine):
    """Times, levels, colours, ports and prefixes of other programs are removed."""
    assert list(strip_prefixes(raw)) == [line]


def test_json_document_can_contain_several_lines():
    """Each line of a JSON message is a line of the log."""
    lines = list(strip_prefixes('{"level":"error","msg":"one\\ntwo\\n"}'))

    assert lines == [LogLine("one"), LogLine("two")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_are_detected(encoding: str):
    """A byte order mark decides the encoding and is removed."""
    assert list(read_lines(io.BytesIO("eins\nzwei ü\n".encode(encoding)))) == ["eins", "zwei ü"]


def test_damaged_bytes_do_not_make_a_log_utf_16():
    """A plain text that begins with a byte order mark of UTF-16 is read as plain text."""
    lines = list(read_lines(io.BytesIO(b"\xff\xfeout of memory\nabort\n")))

    assert lines[0].endswith("out of memory")
    assert lines[1:] == ["abort"]


def test_invalid_utf_8_is_replaced():
    """Output of a model may be invalid UTF-8."""
    assert list(read_lines(io.BytesIO(b"a\xff\xfeb\nc"))) == ["a��b", "c"]


class Endless(io.RawIOBase):
    """A stream of bytes without a line end."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        taken = min(self.left, size)
        self.left -= taken
        return b"x" * taken


def test_long_line_is_split():
    """A line of 20 MB is split into short pieces, and nothing is lost."""
    pieces = [len(piece) for piece in read_lines(Endless(20_000_000))]

    assert max(pieces) <= LONGEST
    assert sum(pieces) == 20_000_000


@given(
    st.lists(st.text(alphabet=st.characters(exclude_characters="\n", exclude_categories=["Cs"])))
)
def test_written_lines_are_read_back(lines: list[str]):
    """Reading is the inverse of writing."""
    text = "".join(f"{line}\n" for line in lines)

    found = list(read_lines(io.BytesIO(text.encode())))

    assert "".join(found) == text.replace("\n", "").removeprefix("\ufeff")


def test_index_finds_the_same_as_all_patterns():
    """The index finds every matching pattern on every line of the corpus."""
    dialect = load_dialect("llama_server")
    patterns = [pattern for _, pattern in make_handlers(dialect.log, dialect.failures)]
    index = PatternIndex(enumerate(patterns))
    seen = set()
    for case in all_cases():
        for line in case.text.splitlines():
            if line in seen:
                continue
            seen.add(line)
            quick = [e.key for e in index.candidates(line) if e.groups(line) is not None]
            slow = [
                n
                for n, p in enumerate(patterns)
                if CompiledPattern.of(n, p).groups(line) is not None
            ]
            assert quick == slow, line


@given(st.lists(st.text(min_size=1, alphabet="ab c"), min_size=1), st.text(alphabet="ab c01"))
def test_index_finds_any_text_in_any_line(texts: list[str], line: str):
    """The index finds every text that a line contains, for any patterns."""
    index = PatternIndex((text, LinePattern((text,))) for text in texts)

    found = [e.key for e in index.candidates(line) if e.groups(line) is not None]

    assert found == [text for text in texts if text in line]
