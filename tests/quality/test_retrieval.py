"""Planted records, decoys, and who finds them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.quality.retrieval import RetrievalTask, is_found, retrieval_tasks

FILLER = [ord(letter) for letter in "The harbour master kept two ledgers. " * 20]


def _tokenize(text):
    return [ord(letter) for letter in text]


def _tasks(length=6000, seed=1, questions=3):
    return retrieval_tasks(FILLER, length, _tokenize, random.Random(seed), questions=questions)


def _text(task):
    return "".join(chr(token) for token in task.prompt)


@settings(max_examples=40)
@given(st.integers(2500, 9000), st.integers(0, 99), st.integers(1, 4))
def test_prompts_have_the_length_asked_for(length, seed, questions):
    """Every prompt fills the length exactly and holds each record once."""
    tasks = _tasks(length, seed, questions)

    assert [task.hops for task in tasks] == [1, 2] * questions
    for task in tasks:
        assert len(task.prompt) == length
        assert _text(task).count("[record] PROJECT") == 2 * questions
        assert _text(task).count("[record] TAG") == 2 * questions + (task.hops == 1)
        assert _text(task).count(f"SECRET {task.secret}\n") == 1


def test_the_two_records_of_a_project_lie_half_the_text_apart():
    """The answer needs two places that no window of half the text holds together."""
    for task in _tasks(20_000):
        text = _text(task)
        place = text.index(f"PROJECT {task.project} -> TAG ")
        tag = text[place:].split("TAG ")[1].split("\n")[0]
        other = text.index(f"TAG {tag} -> SECRET")

        assert 0.4 < abs(place - other) / len(text) < 0.6


def test_secrets_and_tags_are_told_apart_only_exactly():
    """All secrets differ, and none is its project's own decoy."""
    for task in _tasks():
        assert len({task.secret, *task.decoys}) == 6
        assert task.secret not in task.decoys


def test_prompts_share_their_text():
    """Only the endings differ, so that a cache can keep what they share."""
    prompts = [task.prompt for task in _tasks()]

    assert len({prompt[: len(prompt) - 200] for prompt in prompts}) == 1
    assert len(set(prompts)) == len(prompts)


def test_only_a_questions_own_tag_is_told():
    """With one hop the tag is named, with two it must be looked up."""
    for task in _tasks():
        text = _text(task)
        tag = text.split(f"PROJECT {task.project} -> TAG ")[1].split("\n")[0]

        assert text.count(tag) == (3 if task.hops == 1 else 2)


def test_the_same_seed_plants_the_same():
    """Two settings are asked exactly the same."""
    assert _tasks(seed=4) == _tasks(seed=4)
    assert _tasks(seed=4) != _tasks(seed=5)


def test_too_short_a_prompt_is_refused():
    """Records that do not fit are a fault of the caller."""
    with pytest.raises(ValueError, match="too few"):
        _tasks(300)
    with pytest.raises(ValueError, match="too few"):
        retrieval_tasks([], 6000, _tokenize, random.Random(1))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (" KX41 -> SECRET 12345\n", True),
        ("12345", True),
        (" KX41 -> SECRET 12345, and not 54321", True),
        (" KX42 -> SECRET 54321, or 12345", False),
        (" KX41 -> SECRET 99999", False),
        ("", False),
    ],
)
def test_an_answer_counts_if_the_secret_comes_before_any_decoy(text, found):
    """The exact secret counts, a decoy before it does not."""
    task = RetrievalTask("Alder-1", (1, 2), "12345", ("54321", "11111"))

    assert is_found(task, text) == found
