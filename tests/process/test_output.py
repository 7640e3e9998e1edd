"""The last lines of a stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autofit.process.output import LINE_BYTES, Tail


@given(st.lists(st.binary(max_size=50)), st.integers(1, 5))
def test_tail_is_independent_of_how_the_stream_is_cut(pieces: list[bytes], capacity: int):
    """However a stream arrives, the tail is that of the whole."""
    whole, parts = Tail(capacity), Tail(capacity)

    whole.feed(b"".join(pieces))
    for piece in pieces:
        parts.feed(piece)

    assert whole.lines() == parts.lines()
    assert len(whole.lines()) <= capacity


@given(st.lists(st.text(alphabet="abc xyz", max_size=20), min_size=1))
def test_plain_text_is_kept(lines: list[str]):
    """Ordinary lines come back as they are."""
    tail = Tail(len(lines))

    tail.feed("".join(f"{line}\n" for line in lines).encode())

    assert tail.lines() == lines


def test_long_line_is_cut():
    """A line without end takes bounded memory, and the next line is whole again."""
    tail = Tail(3)

    for _ in range(100):
        tail.feed(b"x" * 1000)
    tail.feed(b"\nnext\r\n\x1b[31mred\x1b[0m\tx\x07")

    assert tail.lines() == ["x" * LINE_BYTES, "next", "red\tx\ufffd"]
