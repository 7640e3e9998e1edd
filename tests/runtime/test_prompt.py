"""Prompts of an exact length, cut from real text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.errors import UsageError
from autofit.runtime.server.client import RequestFailure
from autofit.runtime.server.send_requests import PromptSource, read_prompt_text
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
