"""The retrieval tasks of a prompt set: planted records, decoys and answers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.quality.prompt_set import RetrievalTask, is_found, make_retrieval_tasks

FILLER = [ord(letter) for letter in "The harbour master kept two ledgers. " * 20]


def _tokenize(text):
    return [ord(letter) for letter in text]


def _tasks(length=6000, seed=1, questions=3):
    return make_retrieval_tasks(
        FILLER, length, _tokenize, random.Random(seed), questions=questions
    )


def _text(task):
    return "".join(chr(token) for token in task.prompt)


@settings(max_examples=40)
@given(st.integers(2500, 9000), st.integers(0, 99), st.integers(1, 4))
def test_prompts_have_the_requested_length(length, seed, questions):
    """Every prompt has exactly this length and each record once."""
    tasks = _tasks(length, seed, questions)

    assert [task.hops for task in tasks] == [1, 2] * questions
    for task in tasks:
        assert len(task.prompt) == length
        assert _text(task).count("[record] PROJECT") == 2 * questions
        assert _text(task).count("[record] TAG") == 2 * questions + (task.hops == 1)
        assert _text(task).count(f"SECRET {task.secret}\n") == 1


def test_records_of_a_project_are_half_the_text_apart():
    """The answer needs two positions that no window of half the text covers."""
    for task in _tasks(20_000):
        text = _text(task)
        place = text.index(f"PROJECT {task.project} -> TAG ")
        tag = text[place:].split("TAG ")[1].split("\n")[0]
        other = text.index(f"TAG {tag} -> SECRET")

        assert 0.4 < abs(place - other) / len(text) < 0.6


def test_all_secrets_differ():
    """No secret is its project's own decoy."""
    for task in _tasks():
        assert len({task.secret, *task.decoys}) == 6
        assert task.secret not in task.decoys


def test_prompts_share_their_text():
    """Only the endings differ, so that a cache can keep the rest."""
    prompts = [task.prompt for task in _tasks()]

    assert len({prompt[: len(prompt) - 200] for prompt in prompts}) == 1
    assert len(set(prompts)) == len(prompts)


def test_question_with_one_hop_names_the_tag():
    """With two hops the tag must be looked up."""
    for task in _tasks():
        text = _text(task)
        tag = text.split(f"PROJECT {task.project} -> TAG ")[1].split("\n")[0]

        assert text.count(tag) == (3 if task.hops == 1 else 2)


def test_equal_seeds_plant_the_same_records():
    """Two settings get exactly the same prompts."""
    assert _tasks(seed=4) == _tasks(seed=4)
    assert _tasks(seed=4) != _tasks(seed=5)


def test_prompt_too_short_for_the_records_is_an_error():
    """Records that do not fit, or no filler, raise an error."""
    with pytest.raises(ValueError, match="too few"):
        _tasks(300)
    with pytest.raises(ValueError, match="too few"):
        make_retrieval_tasks([], 6000, _tokenize, random.Random(1))


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
def test_secret_counts_only_before_any_decoy(text, found):
    """An answer counts if it names the exact secret, and no decoy before it."""
    task = RetrievalTask("Alder-1", (1, 2), "12345", ("54321", "11111"))

    assert is_found(task, text) == found
