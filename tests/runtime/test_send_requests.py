"""Prompts of an exact length, and answers with impossible counters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.errors import UsageError
from autofit.runtime.server.client import Answer, RequestFailure
from autofit.runtime.server.request_plan import PlannedRequest
from autofit.runtime.server.send_requests import (
    MAX_PP_PER_S,
    MAX_TG_PER_S,
    PromptSource,
    find_implausible,
    read_prompt_text,
)
from autofit.trial.workload import Request, Workload


class Tokenizer:
    """Makes a token of every character, or gives another answer."""

    def __init__(self, answer=None) -> None:
        self.answer = answer
        self.asked = 0

    def tokenize(self, text: str):
        """The tokens of a text."""
        self.asked += 1
        return [ord(letter) for letter in text] if self.answer is None else self.answer


def source_of(text: str) -> PromptSource:
    """A source that is ready to cut."""
    source = PromptSource(text)
    assert source.prepare(Tokenizer()) is None
    return source


def workload(text: str = "") -> Workload:
    """Any workload with that text."""
    return Workload("any", context=1024, parallel=1, requests=(Request(8, 8),), text=text)


@given(st.text(min_size=1, max_size=60), st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_a_prompt_has_the_length_asked_for(text, lengths):
    """However short the text, the prompt is exact, and made of the text going round."""
    source = source_of(text)

    for length in lengths:
        tokens = source.cut(length)
        assert len(tokens) == length
        assert "".join(map(chr, tokens)) in text * (length // len(text) + 2)


def test_prompts_do_not_share_their_beginning():
    """A cached prefix would make the next prompt look fast."""
    source = source_of("".join(chr(1000 + i) for i in range(3000)))

    beginnings = [tuple(source.cut(100)[:8]) for _ in range(200)]

    assert len(set(beginnings)) == 200


def test_a_text_is_tokenized_once():
    """All launches of a model share the tokens."""
    source, tokenizer = PromptSource("abc"), Tokenizer()

    for _ in range(3):
        source.prepare(tokenizer)

    assert tokenizer.asked == 1


def test_fixed_prompts_are_the_same_each_time():
    """Answers are compared on one prompt."""
    source = source_of("some text")

    assert source.fixed(5) == source.fixed(5) == [ord(letter) for letter in "some "]
    assert len(source.fixed(100)) == 100


@pytest.mark.parametrize(
    "answer", [[], RequestFailure("http", "prompt", "unexpected answer", 404, "")]
)
def test_a_server_that_cannot_tokenize_is_told(answer):
    """No tokens are a failure, and it is asked again the next time."""
    source = PromptSource("abc")

    assert isinstance(source.prepare(Tokenizer(answer)), RequestFailure)
    assert source.prepare(Tokenizer()) is None


def test_the_shipped_text_is_long_and_plain():
    """Without a text of the user's there is one of some pages."""
    text = read_prompt_text(workload())

    assert len(text) > 10_000
    assert len(set(text.split())) > 800


def test_the_users_own_text_is_read(tmp_path: Path):
    """Bytes that are no UTF-8 do not end a tune."""
    path = tmp_path / "mine.txt"
    path.write_bytes(b"salt \xff and pepper")

    assert read_prompt_text(workload(str(path))) == "salt \N{REPLACEMENT CHARACTER} and pepper"


@pytest.mark.parametrize(("content", "told"), [(None, "cannot read"), (" \n", "is empty")])
def test_a_text_that_is_none_is_told(tmp_path: Path, content, told):
    """A missing or empty text is named with what it should be."""
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_text(content)

    with pytest.raises(UsageError, match=told) as caught:
        read_prompt_text(workload(str(path)))
    assert "text" in caught.value.hint


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
