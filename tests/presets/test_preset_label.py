"""Short names of what a user gave as a preset."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autofit.presets.label import shorten, shorten_apart

LONG = "/opt/llama.cpp/build/bin/llama-server -m /models/big-moe-q4.gguf -c 32768 -ngl 99"


@pytest.mark.parametrize(
    ("one", "other", "first", "second"),
    [
        (
            f"{LONG} --n-cpu-moe 12 -ub 512",
            f"{LONG} --n-cpu-moe 2 -ub 512",
            "/opt/llama.cpp/bui ... --n-cpu-moe 12 -ub 512",
            "/opt/llama.cpp/bui ... --n-cpu-moe 2 -ub 512",
        ),
        (LONG, f"{LONG} -ub 512", "/opt/llama.cpp/bui ... -ngl 99", None),
        ("llama-server -m a", "llama-server -m b", "llama-server -m a", "llama-server -m b"),
        (LONG, LONG, shorten(LONG), shorten(LONG)),
    ],
)
def test_two_long_commands_are_cut_to_what_differs(one, other, first, second):
    """The flag that differs is read; what is short or the same is left as it is."""
    labels = shorten_apart(one, other)

    assert labels[0] == first
    assert second is None or labels[1] == second


@given(
    *(st.text("ab -/.", min_size=0, max_size=n) for n in (90, 60, 60)),
)
def test_labels_differ_where_commands_do(alike, one, other):
    """Whatever two commands have in common, their labels are short and told apart."""
    texts = " ".join((alike + one).split()), " ".join((alike + other).split())
    assume(texts[0] != texts[1])

    labels = shorten_apart(*texts)

    assert labels[0] != labels[1]
    assert max(map(len, labels)) <= 60
