"""Answers kept for comparison."""

from __future__ import annotations

import json

from quality.answer_sample import answer, answers

from autofit.quality.recorded_answer import (
    RecordedAnswer,
    first_difference,
    same_prefix,
    tokens,
)
from autofit.runtime.server.client import Answer


def test_an_answer_survives_json():
    """An answer reads back as it was written; token ids stay numbers."""
    (kept,) = answers(1)

    assert RecordedAnswer.from_dict(json.loads(json.dumps(kept.to_dict()))) == kept


def test_of_a_servers_answer_what_was_said_is_kept():
    """Times are no part of a comparison."""
    kept = answers(1)[0]
    sent = Answer(kept.text, kept.token_ids, 5, 0, 0.1, 16, 1.0, 0.1, kept.choices)

    assert RecordedAnswer.of(sent) == kept


def test_the_first_difference_counts_length():
    """A shorter sequence differs where it ends."""
    assert first_difference("abc", "abc") is None
    assert first_difference("abc", "abd") == 2
    assert first_difference("abc", "ab") == 2
    assert first_difference((), ()) is None


def test_choices_are_compared_up_to_the_first_that_differs():
    """After different tokens the chances are those of different texts."""
    one = answer([{1: 0.9}, {2: 0.6, 3: 0.4}, {4: 0.9}])
    other = answer([{1: 0.8}, {2: 0.4, 3: 0.6}, {4: 0.9}])

    assert len(list(same_prefix(one, other))) == 2
    assert len(list(same_prefix(one, one))) == 3


def test_tokens_are_known_without_their_chances():
    """A runtime that tells no chances may still tell its tokens."""
    assert tokens(RecordedAnswer("a b", (1, 2))) == (1, 2)
    assert tokens(answer([{1: 0.9}, {2: 0.9}])) == (1, 2)
