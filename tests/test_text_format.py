"""Numbers, settings and text from elsewhere as all outputs format them."""

from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.text_format import (
    duration,
    estimate,
    headroom,
    is_undecided,
    mib,
    number,
    one_line,
    speedup_text,
)


@given(st.text(st.characters(), max_size=40))
def test_one_line_is_safe_for_any_terminal(text):
    """Nothing in a text breaks the line, moves the cursor or reverses the order."""
    line = one_line(text)

    assert len(line.splitlines()) <= 1
    assert not [c for c in line if unicodedata.category(c) in ("Cc", "Cf", "Cs")]
    line.encode()


def test_one_line_keeps_readable_characters():
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
def test_duration_depends_on_its_length(seconds, text):
    """Short spans have a decimal, long ones minutes or hours."""
    assert duration(seconds) == text


def test_memory_and_numbers_have_few_digits():
    """Numbers have three digits, and an unknown one is not zero."""
    assert [mib(v) for v in (None, 0.0, 931.4, 20480.0)] == [
        *("unknown", "0 MiB", "931 MiB", "20.0 GiB")
    ]
    assert [number(v) for v in (None, 0.0123456, 41.96, 1021.4)] == [
        *("unknown", "0.0123", "42", "1,021")
    ]
    assert headroom({"CUDA0": 850.0, "host": None}) == "CUDA0 850 MiB, host unknown"
    assert headroom({}) == "unknown"


def test_estimate_has_its_interval_or_says_that_there_is_none():
    """A median without an interval is marked."""
    assert estimate({"median": 9.1, "low": 8.9, "high": 9.4, "n": 5}) == "9.1 (8.9 to 9.4, n = 5)"
    assert estimate({"median": 9.1, "low": None, "high": None, "n": 2}) == (
        "9.1 (no interval, n = 2)"
    )
    assert estimate(None) == "unknown"


@pytest.mark.parametrize(
    ("gain", "tie", "text"),
    [
        ((1.8, 1.73, 1.88, 5), False, "1.80x as fast (95% interval 1.73 to 1.88)"),
        ((1.5, 0.98, 2.31, 3), False, "Not decided after 3 rounds: 0.98 to 2.31 times as fast"),
        ((1.2, None, None, 2), False, "Not decided after 2 rounds of at least 3: 1.20x as fast"),
        ((1.0, 1.0, 1.0, 4), False, "The baseline is the fastest found"),
        ((1.0, 1.0, 1.0, 0), False, "The baseline is the only one to recommend"),
        (
            (1.01, 0.99, 1.02, 5),
            True,
            "Equally fast within the noise: 1.01x as fast (95% interval 0.99 to 1.02)",
        ),
    ],
)
def test_speedup_is_a_factor_with_its_certainty(gain, tie, text):
    """A speedup, an undecided one, a tie and the baseline's win have their own texts."""
    keys = ("median", "low", "high", "n")

    assert speedup_text(dict(zip(keys, gain, strict=True)), tie=tie) == text


def test_missing_speedup_is_unknown():
    """Without a measured baseline there is no speedup."""
    assert speedup_text(None, tie=False).startswith("Speedup unknown")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.1, 1.3, False), (0.9, 1.5, True), (None, None, True), (0.8, 0.9, False)],
)
def test_speedup_is_undecided_if_it_may_be_a_loss(low, high, expected):
    """An interval that includes 1, or no interval, decides nothing."""
    assert is_undecided({"median": 1.2, "low": low, "high": high}) is expected
