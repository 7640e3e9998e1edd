"""Equality of answers under two settings that must not change them.

Another ubatch, device or build adds the same numbers in another order. This rounding changes the
probabilities of the next token a little. If two tokens were nearly as likely, the greedy choice
can change, and the texts differ from there on. A larger difference is a fault.

In a mixture of experts rounding can send a token to another expert. The probabilities of this one
token then change a lot, and those of others hardly. So nine of ten tokens of such a model must
agree. In other models all tokens must agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from autofit.quality.recorded_answer import RecordedAnswer, token_divergences

# Measured with a 270M Q4_K model on a CPU, where rounding is coarsest: another ubatch,
# another number of threads, flash attention off or no repacking diverge by 0.001 to 0.004 nats
# a token and 0.11 at most; a KV cache of q4_0 instead of f16 by 0.05 a token. Texts parted
# between tokens whose log probabilities were up to 0.85 apart.
_ROUNDING_NATS = 0.01
_ROUNDING_NATS_OF_ONE_TOKEN = 0.5
_NEAR_TIE = 1.0
# Mixtures of experts: measured with random weights, eight experts, two used, where routing is
# most sensitive: another ubatch, flash attention off or no repacking moved 1 to 8% of the
# tokens, by up to 1.4 nats, and all others by 0.006 at most; a q4_0 K cache moved 30 to 90%.
_SHARE_OF_AGREEING_TOKENS = 0.9
_SHOWN_CHARACTERS = 40

# equal: the same texts; rounding: they differ first where two tokens were nearly as likely;
# different: rounding does not explain the difference; unknown: nothing to compare.
EqualityVerdict = Literal["equal", "rounding", "different", "unknown"]


@dataclass(frozen=True, slots=True)
class AnswerDifference:
    """The first position at which two answers to a prompt differ.

    Attributes:
        prompt: the index of the prompt.
        position: generated tokens before it (characters where tokens are not known).
        reference, other: the text around it on both sides.
        gap: the difference between the natural log probabilities of the two tokens, on the side
            where it is larger; None if the runtime does not report them.
    """

    prompt: int
    position: int
    reference: str
    other: str
    gap: float | None


@dataclass(frozen=True, slots=True)
class Equality:
    """The comparison of all answers under two settings.

    Attributes:
        identical: the number of prompts with exactly the same answer.
        tokens: the number of compared tokens: those that both sides chose after the same text.
        mean_divergence, max_divergence: nats per token; None if the runtime reports no
            probabilities.
        typical_divergence: the divergence that nine of ten tokens do not exceed.
        tolerance: the mean divergence that rounding may cause.
    """

    verdict: EqualityVerdict
    prompts: int
    identical: int
    tokens: int
    mean_divergence: float | None
    typical_divergence: float | None
    max_divergence: float | None
    tolerance: float
    first: AnswerDifference | None


def compare_answers(
    reference: Sequence[RecordedAnswer],
    other: Sequence[RecordedAnswer],
    *,
    is_sparse: bool = False,
) -> Equality:
    """Compare answers with those of a trusted reference to the same prompts, in the same order.

    `is_sparse` is true for a mixture of experts.

    Raises:
        ValueError: the two sides have different numbers of answers.
    """
    pairs = list(zip(reference, other, strict=True))
    differences = [
        difference
        for prompt, pair in enumerate(pairs)
        if (difference := _find_difference(prompt, *pair)) is not None
    ]
    found = token_divergences(reference, other)
    mean = fmean(found) if found else None
    largest = max(found, default=None)
    typical = _typical_divergence(found) if found else None
    if is_sparse and typical is not None:
        is_rounding = typical <= _ROUNDING_NATS and not any(
            one.tokens == two.tokens and one.text != two.text for one, two in pairs
        )
    else:
        is_rounding = (
            all(one.gap is not None and one.gap <= _NEAR_TIE for one in differences)
            and (mean is None or mean <= _ROUNDING_NATS)
            and (largest is None or largest <= _ROUNDING_NATS_OF_ONE_TOKEN)
        )
    verdict: EqualityVerdict = "unknown"
    if reference:
        verdict = "different" if not is_rounding else "rounding" if differences else "equal"
    return Equality(
        verdict=verdict,
        prompts=len(reference),
        identical=len(reference) - len(differences),
        tokens=len(found),
        mean_divergence=mean,
        typical_divergence=typical,
        max_divergence=largest,
        tolerance=_ROUNDING_NATS,
        first=differences[0] if differences else None,
    )


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """Return the first index at which two sequences differ, in an item or in length."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def _typical_divergence(divergences: Sequence[float]) -> float:
    """Return the largest divergence among the share of tokens that must agree."""
    return sorted(divergences)[math.ceil(_SHARE_OF_AGREEING_TOKENS * len(divergences)) - 1]


def _find_difference(
    prompt: int, reference: RecordedAnswer, other: RecordedAnswer
) -> AnswerDifference | None:
    ours, theirs = reference.tokens, other.tokens
    in_text = first_difference(reference.text, other.text)
    in_tokens = first_difference(ours, theirs) if ours and theirs else None
    # The same tokens with another text is a fault of the runtime, not of rounding.
    position = in_tokens if in_tokens is not None else in_text
    if position is None:
        return None
    start = max(0, (in_text or 0) - _SHOWN_CHARACTERS // 2)
    return AnswerDifference(
        prompt=prompt,
        position=position,
        reference=reference.text[start : start + _SHOWN_CHARACTERS],
        other=other.text[start : start + _SHOWN_CHARACTERS],
        gap=None if in_tokens is None else _logprob_gap(reference, other, in_tokens),
    )


def _logprob_gap(one: RecordedAnswer, other: RecordedAnswer, position: int) -> float | None:
    if position >= min(len(one.choices), len(other.choices)):
        return None
    ours, theirs = one.choices[position], other.choices[position]
    gaps = [
        choice.top.get(choice.token_id, math.nan) - choice.top.get(another.token_id, math.nan)
        for choice, another in ((ours, theirs), (theirs, ours))
    ]
    return None if any(math.isnan(gap) for gap in gaps) else max(gaps)
