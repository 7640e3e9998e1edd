"""Whether two settings that must not change the answers gave the same ones.

Another ubatch, another device or another build adds the same numbers in another order, so
the chances of the next token move a little; and where two tokens were nearly as likely the
greedy choice may fall on the other one, and the texts part. Such a difference is told, and
told apart from one that rounding cannot explain.

In a mixture of experts rounding now and then sends a token to another expert. That moves the
chances of this one token a lot, and those of the others hardly: there nine tokens in ten must
agree, where in other models all must.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

from autofit.quality.divergence import divergences
from autofit.quality.recorded_answer import RecordedAnswer, first_difference, tokens

# Measured with a 270M Q4_K model on a CPU, where rounding is coarsest: another ubatch,
# another count of threads, flash attention off or no repacking diverge by 0.001 to 0.004 nats
# a token and 0.11 at most; a KV cache of q4_0 instead of f16 by 0.05 a token. Texts parted
# between tokens whose logarithms were up to 0.85 apart.
ROUNDING_DIVERGENCE = 0.01
_MOST_AT_ONE_TOKEN = 50
NEAR_TIE = 1.0
# Of mixtures: measured with random weights, eight experts, two used, where routing is most
# sensitive: another ubatch, flash attention off or no repacking moved 1 to 8% of the tokens,
# by up to 1.4 nats, and all others by 0.006 at most; a q4_0 K cache moved 30 to 90%.
_SHARE_AS_ROUTED = 0.9
_SHOWN_CHARACTERS = 40

# equal: the same texts; rounding: they part where two tokens were nearly as likely;
# different: rounding does not explain it; unknown: nothing to compare.
EqualityVerdict = Literal["equal", "rounding", "different", "unknown"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two answers to a prompt part.

    `position` counts generated tokens (characters where tokens are not known); `gap` is how
    much likelier each side held its own token than the other's, in logarithms, the larger
    of the two; None where the runtime does not tell.
    """

    prompt: int
    position: int
    reference: str
    other: str
    gap: float | None


@dataclass(frozen=True, slots=True)
class Equality:
    """The comparison of all answers of two settings.

    `tokens` counts those compared after the same text; divergences are in nats, None where
    the runtime tells no chances. Nine tokens in ten diverge by no more than the typical one.
    """

    verdict: EqualityVerdict
    prompts: int
    identical: int
    tokens: int
    mean_divergence: float | None
    typical_divergence: float | None
    max_divergence: float | None
    tolerance: float
    first: Difference | None

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON data."""
        return asdict(self)


def compare_answers(
    reference: Sequence[RecordedAnswer],
    other: Sequence[RecordedAnswer],
    tolerance: float = ROUNDING_DIVERGENCE,
    *,
    is_sparse: bool = False,
) -> Equality:
    """Compare answers to the same prompts in the same order.

    Args:
        reference: answers of the settings that are trusted.
        other: answers of the settings to be checked.
        tolerance: the mean divergence, in nats a token, that rounding may cause; a single
            token may diverge fifty times as much.
        is_sparse: whether the model is a mixture of experts.

    Raises:
        ValueError: the answers do not pair up.
    """
    differences = [
        difference
        for prompt, pair in enumerate(zip(reference, other, strict=True))
        if (difference := _difference(prompt, *pair)) is not None
    ]
    diverged = divergences(reference, other)
    mean = fmean(diverged) if diverged else None
    most = max(diverged, default=None)
    typical = _share_below(diverged) if diverged else None
    if is_sparse and typical is not None:
        is_rounding = typical <= tolerance and not any(
            _is_other_text(*pair) for pair in zip(reference, other, strict=True)
        )
    else:
        is_rounding = (
            all(one.gap is not None and one.gap <= NEAR_TIE for one in differences)
            and (mean is None or mean <= tolerance)
            and (most is None or most <= _MOST_AT_ONE_TOKEN * tolerance)
        )
    verdict: EqualityVerdict = "unknown"
    if reference:
        verdict = "different" if not is_rounding else "rounding" if differences else "equal"
    return Equality(
        verdict=verdict,
        prompts=len(reference),
        identical=len(reference) - len(differences),
        tokens=len(diverged),
        mean_divergence=mean,
        typical_divergence=typical,
        max_divergence=most,
        tolerance=tolerance,
        first=differences[0] if differences else None,
    )


def _share_below(diverged: Sequence[float]) -> float:
    """What the share of the tokens that must agree diverge by at most."""
    return sorted(diverged)[math.ceil(_SHARE_AS_ROUTED * len(diverged)) - 1]


def _is_other_text(one: RecordedAnswer, other: RecordedAnswer) -> bool:
    """Whether the same tokens were put out as another text."""
    return tokens(one) == tokens(other) and one.text != other.text


def _difference(prompt: int, one: RecordedAnswer, other: RecordedAnswer) -> Difference | None:
    ours, theirs = tokens(one), tokens(other)
    in_text = first_difference(one.text, other.text)
    in_tokens = first_difference(ours, theirs) if ours and theirs else None
    # The same tokens with another text is a fault of the runtime, not of rounding.
    place = in_tokens if in_tokens is not None else in_text
    if place is None:
        return None
    start = max(0, (in_text or 0) - _SHOWN_CHARACTERS // 2)
    return Difference(
        prompt=prompt,
        position=place,
        reference=one.text[start : start + _SHOWN_CHARACTERS],
        other=other.text[start : start + _SHOWN_CHARACTERS],
        gap=None if in_tokens is None else _gap(one, other, in_tokens),
    )


def _gap(one: RecordedAnswer, other: RecordedAnswer, place: int) -> float | None:
    if place >= min(len(one.choices), len(other.choices)):
        return None
    ours, theirs = one.choices[place], other.choices[place]
    gaps = [
        choice.top.get(choice.token_id, math.nan) - choice.top.get(another.token_id, math.nan)
        for choice, another in ((ours, theirs), (theirs, ours))
    ]
    return None if any(math.isnan(gap) for gap in gaps) else max(gaps)
