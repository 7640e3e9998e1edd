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
    """A tokenizer with a token for every character, or another answer."""

    def __init__(self, answer=None) -> None:
        self.answer = answer
        self.calls = 0

    def tokenize(self, text: str):
        """Return the tokens of a text."""
        self.calls += 1
        return [ord(letter) for letter in text] if self.answer is None else self.answer


def source_of(text: str) -> PromptSource:
    """Return a prepared source."""
    source = PromptSource(text)
    assert source.prepare(Tokenizer()) is None
    return source


def workload(text: str = "") -> Workload:
    """Return a workload with this text."""
    return Workload("any", context=1024, parallel=1, requests=(Request(8, 8),), text=text)


@given(st.text(min_size=1, max_size=60), st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_prompt_has_the_exact_length(text, lengths):
    """A prompt has its exact length and consists of the repeated text."""
    source = source_of(text)

    for length in lengths:
        tokens = source.cut(length)
        assert len(tokens) == length
        assert "".join(map(chr, tokens)) in text * (length // len(text) + 2)


def test_prompts_have_different_beginnings():
    """Prompts begin differently, so that no cached prefix is used."""
    source = source_of("".join(chr(1000 + i) for i in range(3000)))

    beginnings = [tuple(source.cut(100)[:8]) for _ in range(200)]

    assert len(set(beginnings)) == 200


def test_text_is_tokenized_once():
    """The tokens of a text are used for all launches."""
    source, tokenizer = PromptSource("abc"), Tokenizer()

    for _ in range(3):
        source.prepare(tokenizer)

    assert tokenizer.calls == 1


def test_fixed_prompt_is_always_the_same():
    """A fixed prompt is the beginning of the text every time."""
    source = source_of("some text")

    assert source.fixed(5) == source.fixed(5) == [ord(letter) for letter in "some "]
    assert len(source.fixed(100)) == 100


@pytest.mark.parametrize(
    "answer", [[], RequestFailure("http", "prompt", "unexpected answer", 404, "")]
)
def test_failed_tokenization_is_repeated(answer):
    """An answer without tokens is a failure, and the next launch tries again."""
    source = PromptSource("abc")

    assert isinstance(source.prepare(Tokenizer(answer)), RequestFailure)
    assert source.prepare(Tokenizer()) is None


def test_shipped_text_is_long_enough():
    """The shipped text has several pages."""
    text = read_prompt_text(workload())

    assert len(text) > 10_000
    assert len(set(text.split())) > 800


def test_text_of_the_user_is_read(tmp_path: Path):
    """Invalid UTF-8 in the user's text is replaced."""
    path = tmp_path / "mine.txt"
    path.write_bytes(b"salt \xff and pepper")

    assert read_prompt_text(workload(str(path))) == "salt \N{REPLACEMENT CHARACTER} and pepper"


@pytest.mark.parametrize(("content", "error"), [(None, "cannot read"), (" \n", "is empty")])
def test_missing_or_empty_text_is_an_error(tmp_path: Path, content, error):
    """The error names the problem, and the hint the key of the workload file."""
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_text(content)

    with pytest.raises(UsageError, match=error) as caught:
        read_prompt_text(workload(str(path)))
    assert "text" in caught.value.hint


REQUEST = PlannedRequest(1000, 33)
GOOD = Answer("text", (), 1000, 0, 0.5, 33, 0.4, 0.51)


def test_plausible_answer_is_accepted():
    """An answer with all tokens, none from a cache, at a possible speed is accepted."""
    assert find_implausible(GOOD, REQUEST) is None


@given(
    st.integers(1, 100_000), st.integers(1, 5_000),
    st.floats(1.0, MAX_PP_PER_S), st.floats(0.01, MAX_TG_PER_S),
)  # fmt: skip
def test_every_possible_speed_is_accepted(prompt, predicted, pp, tg):
    """Very slow and very fast machines are accepted."""
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
    outcome = find_implausible(replace(GOOD, **changed), REQUEST)

    assert (outcome.kind, outcome.stage) == ("incorrect", stage)


def test_single_token_needs_no_time():
    """The first token comes with the prompt, so its generation takes no time."""
    answer = replace(GOOD, predicted_tokens=1, predicted_s=0.0)

    assert find_implausible(answer, PlannedRequest(1000, 1)) is None
