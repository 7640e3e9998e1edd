"""Equality of answers under settings that must not change them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from quality.answer_sample import answer, answers

from autofit.quality.equality import compare_answers, first_difference
from autofit.quality.recorded_answer import RecordedAnswer
from autofit.runtime.server.client import TokenChoice


def test_same_answers_are_equal():
    """Answers that agree to the last digit are equal."""
    kept = answers()

    result = compare_answers(kept, kept)

    assert (result.verdict, result.identical, result.first) == ("equal", 4, None)
    assert result.mean_divergence == 0.0
    assert result.tokens == 64


def test_rounding_is_tolerated():
    """Probabilities that move as floating point moves them change no verdict."""
    result = compare_answers(answers(), answers(noise=0.02))

    assert result.verdict in ("equal", "rounding")
    assert 0 < result.mean_divergence < 0.01


def test_texts_may_differ_after_a_near_tie():
    """Two tokens that were nearly as likely explain the first difference, which is shown."""
    one = answer([{1: 0.9}, {2: 0.48, 3: 0.46}, {4: 0.9}])
    other = answer([{1: 0.9}, {2: 0.46, 3: 0.48}, {5: 0.9}])

    result = compare_answers([one], [other])

    assert (result.verdict, result.identical, result.tokens) == ("rounding", 0, 2)
    assert (result.first.prompt, result.first.position) == (0, 1)
    assert (result.first.reference, result.first.other) == (" w1 w2 w4", " w1 w3 w5")
    assert result.first.gap == pytest.approx(math.log(0.48 / 0.46))


def test_change_of_a_likely_token_is_a_difference():
    """Rounding does not turn a token of 90% into another."""
    one = answer([{1: 0.9, 2: 0.05}])
    other = answer([{1: 0.05, 2: 0.9}])

    assert compare_answers([one], [other]).verdict == "different"


@pytest.mark.parametrize("position", [0, 7, 15])
def test_one_corrupted_token_is_found(position):
    """A single wrong token among many right ones is a difference."""
    kept = answers()
    choices = list(kept[2].choices)
    choices[position] = TokenChoice(999, -0.1, {999: -0.1, 998: -3.0})
    broken = replace(
        kept[2],
        choices=tuple(choices),
        token_ids=tuple(choice.token_id for choice in choices),
        text=kept[2].text + "?",
    )

    result = compare_answers(kept, [*kept[:2], broken, kept[3]])

    assert result.verdict == "different"
    assert (result.first.prompt, result.first.position) == (2, position)


def test_same_text_with_distant_probabilities_is_a_difference():
    """Probabilities that moved too far were not computed in the same way."""
    one = answer([{1: 0.9, 2: 0.05}] * 20)
    other = answer([{1: 0.6, 2: 0.3}] * 20)

    result = compare_answers([one], [other])

    assert (result.verdict, result.identical, result.first) == ("different", 1, None)


def test_nonsense_is_a_difference():
    """Probabilities that are no numbers are never within a tolerance."""
    one = answer([{1: 0.9, 2: 0.05}])
    other = RecordedAnswer(one.text, (1,), (TokenChoice(1, math.nan, {1: math.nan}),))

    assert compare_answers([one], [other]).verdict == "different"


def test_without_probabilities_only_the_same_text_is_equal():
    """If the runtime reports no probabilities, rounding cannot explain a difference."""
    one, same, other = (RecordedAnswer(text) for text in ("to be or", "to be or", "to be at"))

    assert compare_answers([one], [same]).verdict == "equal"
    result = compare_answers([one], [other])
    assert (result.verdict, result.first.position) == ("different", 6)
    assert (result.mean_divergence, result.first.gap) == (None, None)


def test_same_tokens_with_another_text_are_a_difference():
    """The text that a user reads counts, whatever tokens the runtime reports."""
    (whole,) = answers(1)

    result = compare_answers([whole], [replace(whole, text=whole.text[:-1] + "?")])

    assert (result.verdict, result.first.gap) == ("different", None)
    assert result.first.position == len(whole.text) - 1


def test_shorter_answer_is_a_difference():
    """The same words but fewer of them are not the same answer."""
    (whole,) = answers(1)
    short = replace(whole, choices=whole.choices[:9], token_ids=whole.token_ids[:9])

    result = compare_answers([whole], [short])

    assert (result.verdict, result.first.position) == ("different", 9)


def test_one_token_routed_to_another_expert_is_rounding():
    """In a mixture of experts one token in twenty may change a lot; in other models none."""
    one = answer([{1: 0.9, 2: 0.05}] * 20)
    other = answer([{1: 0.9, 2: 0.05}] * 19 + [{1: 0.05, 2: 0.9}])

    assert compare_answers([one], [other]).verdict == "different"
    assert compare_answers([one], [other], is_sparse=True).verdict == "rounding"


def test_many_changed_tokens_are_a_difference_in_a_mixture():
    """If more than one token in ten changes, routing does not explain it."""
    one = answer([{1: 0.9, 2: 0.05}] * 20)
    other = answer([{1: 0.9, 2: 0.05}, {1: 0.6, 2: 0.3}, *[{1: 0.9, 2: 0.05}] * 6] * 2)

    assert compare_answers([one] * 2, [other] * 2, is_sparse=True).verdict == "different"


def test_garbled_text_is_a_difference_in_a_mixture():
    """Routing explains other tokens, not another text of the same tokens."""
    kept = answers()
    garbled = [replace(one, text=one.text.replace("w", "?")) for one in kept]

    assert compare_answers(kept, garbled, is_sparse=True).verdict == "different"


def test_no_answers_are_unknown():
    """No answers are not equal answers."""
    assert compare_answers([], []).verdict == "unknown"


def test_answers_must_pair_up():
    """Different numbers of answers are a fault of the caller."""
    with pytest.raises(ValueError, match="shorter"):
        compare_answers(answers(2), answers(1))


def test_first_difference_is_shown_in_its_surroundings():
    """A difference late in a long answer is shown, not the answer's beginning."""
    kept = answers(1, 60)[0]
    other = replace(kept, text=kept.text[:-4] + "else", token_ids=(*kept.token_ids[:-1], 7))
    stripped = [replace(one, choices=()) for one in (kept, other)]

    result = compare_answers(stripped[:1], stripped[1:])

    assert result.first.other.endswith("else")
    assert len(result.first.reference) <= 40
    assert result.first.reference in kept.text


def test_first_difference_counts_length():
    """A shorter sequence differs where it ends."""
    assert first_difference("abc", "abc") is None
    assert first_difference("abc", "abd") == 2
    assert first_difference("abc", "ab") == 2
    assert first_difference((), ()) is None
