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
def test_a_line_is_undressed(raw: str, line: LogLine):
    """Times, levels, colours, ports and the marks of other programs are taken off."""
    assert list(strip_prefixes(raw)) == [line]


def test_a_json_document_can_hold_several_lines():
    """Each line of a message is a line."""
    lines = list(strip_prefixes('{"level":"error","msg":"one\\ntwo\\n"}'))

    assert lines == [LogLine("one"), LogLine("two")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_of_several_encodings_are_read(encoding: str):
    """A byte order mark is understood, and gone."""
    assert list(read_lines(io.BytesIO("eins\nzwei ü\n".encode(encoding)))) == ["eins", "zwei ü"]


def test_two_stray_bytes_do_not_make_a_log_utf_16():
    """A log that begins like UTF-16 but is plain text is read as such."""
    lines = list(read_lines(io.BytesIO(b"\xff\xfeout of memory\nabort\n")))

    assert lines[0].endswith("out of memory")
    assert lines[1:] == ["abort"]


def test_bytes_that_are_no_text_are_read():
    """Output of a model need not be valid UTF-8."""
    assert list(read_lines(io.BytesIO(b"a\xff\xfeb\nc"))) == ["a��b", "c"]


class Endless(io.RawIOBase):
    """So many bytes without a line end."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        taken = min(self.left, size)
        self.left -= taken
        return b"x" * taken


def test_an_endless_line_is_cut():
    """A line of 20 MB comes in pieces, none of them too long, and nothing is lost."""
    pieces = [len(piece) for piece in read_lines(Endless(20_000_000))]

    assert max(pieces) <= LONGEST
    assert sum(pieces) == 20_000_000


@given(
    st.lists(st.text(alphabet=st.characters(exclude_characters="\n", exclude_categories=["Cs"])))
)
def test_lines_come_back_as_they_were(lines: list[str]):
    """Reading is the inverse of writing, line by line."""
    text = "".join(f"{line}\n" for line in lines)

    found = list(read_lines(io.BytesIO(text.encode())))

    assert "".join(found) == text.replace("\n", "").removeprefix("\ufeff")


def test_the_index_finds_what_a_search_of_all_patterns_finds():
    """The quick look at shapes misses no pattern on any line of the corpus."""
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
def test_the_index_finds_any_text_in_any_line(texts: list[str], line: str):
    """Stems and shapes lose nothing, whatever the patterns."""
    index = PatternIndex((text, LinePattern((text,))) for text in texts)

    found = [e.key for e in index.candidates(line) if e.groups(line) is not None]

    assert found == [text for text in texts if text in line]
