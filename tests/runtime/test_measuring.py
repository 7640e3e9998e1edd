"""Which answers cannot be what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.runtime.server.client import Answer
from autofit.runtime.server.request_plan import PlannedRequest
from autofit.runtime.server.send_requests import MAX_PP_PER_S, MAX_TG_PER_S, find_implausible

ASKED = PlannedRequest(1000, 33)
GOOD = Answer("text", (), 1000, 0, 0.5, 33, 0.4, 0.51)


def test_an_honest_answer_passes():
    """All tokens processed and generated, none from a cache, at a speed that exists."""
    assert find_implausible(GOOD, ASKED) is None


@given(
    st.integers(1, 100_000), st.integers(1, 5_000),
    st.floats(1.0, MAX_PP_PER_S), st.floats(0.01, MAX_TG_PER_S),
)  # fmt: skip
def test_every_speed_of_a_real_machine_passes(prompt, predicted, pp, tg):
    """Neither a very slow nor a very fast machine is taken for a broken counter."""
    answer = replace(
        GOOD, prompt_tokens=prompt, prompt_s=prompt / pp * 1.001, predicted_tokens=predicted,
        predicted_s=(predicted - 1) / tg * 1.001,
    )  # fmt: skip

    assert find_implausible(answer, PlannedRequest(prompt, predicted)) is None


@pytest.mark.parametrize(
    ("changed", "stage"),
    [
        ({"cached_tokens": 900, "prompt_tokens": 100}, "prompt"),
        ({"prompt_tokens": 999}, "prompt"),
        ({"predicted_tokens": 32}, "generate"),
        ({"prompt_s": 0.0}, "prompt"),
        ({"prompt_s": -1.0}, "prompt"),
        ({"prompt_s": 0.001}, "prompt"),
        ({"predicted_s": 0.0}, "generate"),
        ({"predicted_s": 0.001}, "generate"),
    ],
)
def test_impossible_counters_are_incorrect(changed, stage):
    """Missing or cached tokens and impossible times make the answer incorrect at their stage."""
    outcome = find_implausible(replace(GOOD, **changed), ASKED)

    assert (outcome.kind, outcome.stage) == ("incorrect", stage)


def test_a_single_token_needs_no_time():
    """The first token comes with the prompt."""
    answer = replace(GOOD, predicted_tokens=1, predicted_s=0.0)

    assert find_implausible(answer, PlannedRequest(1000, 1)) is None
