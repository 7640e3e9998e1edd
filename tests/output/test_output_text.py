"""Numbers and foreign text as people read them."""

from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.text_format import (
    duration,
    estimate,
    gain_sentence,
    headroom,
    mib,
    number,
    one_line,
    speedup,
)


@given(st.text(st.characters(), max_size=40))
def test_one_line_is_safe_for_any_terminal(text):
    """Whatever the text, nothing in it breaks the line, moves the cursor or reverses the order."""
    line = one_line(text)

    assert len(line.splitlines()) <= 1
    assert not [c for c in line if unicodedata.category(c) in ("Cc", "Cf", "Cs")]
    line.encode()


def test_one_line_keeps_what_is_readable():
    """Letters of any script stay, escapes and raw bytes become visible."""
    assert one_line("größe 模型\tx\x1b[2J") == "größe 模型 x\\u001b[2J"
    assert one_line(os.fsdecode(b"caf\xe9")) == "caf\\udce9"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3900, "1 h 05 min"),
    ],
)
def test_durations_read_naturally(seconds, text):
    """Short spans have a decimal, long ones minutes or hours."""
    assert duration(seconds) == text


def test_memory_and_numbers_have_sensible_digits():
    """Three digits are enough, and what is not known is not zero."""
    assert [mib(v) for v in (None, 0.0, 931.4, 20480.0)] == [
        *("unknown", "0 MiB", "931 MiB", "20.0 GiB")
    ]
    assert [number(v) for v in (None, 0.0123456, 41.96, 1021.4)] == [
        *("unknown", "0.0123", "42", "1,021")
    ]
    assert headroom({"CUDA0": 850.0, "host": None}) == "CUDA0 850 MiB, host unknown"
    assert headroom({}) == "unknown"


def test_estimates_carry_their_interval_or_say_there_is_none():
    """A median alone does not pass for one with an interval."""
    assert estimate({"median": 9.1, "low": 8.9, "high": 9.4, "n": 5}) == "9.1 (8.9 to 9.4, n = 5)"
    assert estimate({"median": 9.1, "low": None, "high": None, "n": 2}) == (
        "9.1 (no interval, n = 2)"
    )
    assert estimate(None) == "unknown"


def test_gains_are_said_as_they_are():
    """Faster, slower, a tie and an unknown gain each have their own words."""
    gain = {"median": 1.25, "low": 1.2, "high": 1.3}

    assert speedup(1.25) == "25% faster than"
    assert speedup(0.9) == "10% slower than"
    assert speedup(3.0) == "3 times as fast as"
    assert speedup(137.2) == "140 times as fast as"
    assert gain_sentence(gain, tie=False) == (
        "25% faster than the baseline (interval 1.2 to 1.3 times its speed)"
    )
    assert gain_sentence({"median": 40.0, "low": 0.5, "high": 3210.0}, tie=False) == (
        "no gain shown: 40 times as fast as the baseline "
        "(interval 0.5 to 3,210 times its speed); more rounds might tell"
    )
    assert gain_sentence(gain, tie=True).startswith("a tie with the baseline")
    assert gain_sentence(None, tie=False).startswith("gain unknown")
