"""How far apart two models of the next token are, from the likeliest tokens of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofit.quality.recorded_answer import RecordedAnswer, same_prefix
from autofit.runtime.server.client import TokenChoice

# What all unlisted tokens together have at least: 0 would make any divergence infinite.
_MIN_REST = 1e-6


def divergence(reference: TokenChoice, other: TokenChoice) -> float | None:
    """The Kullback-Leibler divergence in nats; None where no token's chances are known.

    Only tokens that both list count by themselves, all others count together as one: this
    is never more than the divergence over the whole vocabulary. It is infinite where a
    chance is no number.
    """
    if not reference.top or not other.top:
        return None
    shared = [token for token in reference.top if token in other.top]
    ours = [math.exp(reference.top[token]) for token in shared]
    theirs = [math.exp(other.top[token]) for token in shared]
    ours.append(max(1.0 - sum(ours), _MIN_REST))
    theirs.append(max(1.0 - sum(theirs), _MIN_REST))
    if any(math.isnan(chance) for chance in ours + theirs):
        return math.inf
    return max(0.0, sum(_term(p, q) for p, q in zip(ours, theirs, strict=True)))


def divergences(
    reference: Sequence[RecordedAnswer], other: Sequence[RecordedAnswer]
) -> list[float]:
    """The divergence at every token that came after the same text in both answers.

    Raises:
        ValueError: the answers do not pair up.
    """
    found = (
        divergence(*pair)
        for one, two in zip(reference, other, strict=True)
        for pair in same_prefix(one, two)
    )
    return [value for value in found if value is not None]


def _term(p: float, q: float) -> float:
    if p == 0:
        return 0.0
    return p * math.log(p / q) if q > 0 else math.inf
