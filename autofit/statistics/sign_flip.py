"""A sign-flip test that is looked at after every added value, and its interval.

In each round the contenders run in random order, so if two of them are equal, the sign of
the difference of their logarithms is a fair coin, whatever the noise: drift, bursts, heavy
tails, a scale that changes. The test keeps the sizes of the differences and compares the
observed signs with all others (a randomization test, Fisher 1935), over all looks together,
so that its level holds exactly. Differences weigh by Huber's score: an outlier counts as a
large difference, not as a huge one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

# Sizes count up to this many times their own median (1.4826 makes it a standard deviation):
# simulated at 12 rounds it keeps the power of a t-test on normal noise and doubles it under
# bursts.
_SCORE_LIMIT = 1.4826
# All sign patterns up to here, a random sample of them beyond.
_MAX_EXACT_VALUES = 15
_BISECTIONS = 14

Floats = NDArray[np.float64]


def interval(
    values: Sequence[float], spendable: Mapping[int, float], center: float
) -> tuple[float, float]:
    """The shifts that the test does not reject at its last look; infinite where it cannot.

    `spendable` is, for each look at so many values, the chance of a false rejection that
    may be spent up to then; the last look is at all values. `center` lies inside.
    """
    data = np.asarray(values, dtype=float)

    def rejects(shift: float) -> bool:
        return rejects_zero(data - shift, spendable)

    reach = max(float(np.ptp(data)), abs(center) * 1e-9, 1e-12)
    return _edge(rejects, center, -reach), _edge(rejects, center, reach)


def _edge(rejects: Callable[[float], bool], center: float, reach: float) -> float:
    # Beyond all values every sign is the same: what is not rejected there never is.
    outside = center + 2 * reach
    if not rejects(outside):
        return float(np.copysign(np.inf, reach))
    inside = center
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        if rejects(middle):
            outside = middle
        else:
            inside = middle
    return outside


def rejects_zero(values: Floats, spendable: Mapping[int, float]) -> bool:
    """Whether the last look excludes that the values lie around zero.

    Each look rejects the patterns of signs that are most extreme among those not rejected
    by an earlier one, as many as the chance spendable up to it allows.
    """
    sizes = np.abs(values)
    # The first pattern is the observed one, so that it is among those it is compared with.
    flips = _patterns(values.size) * np.where(values < 0, -1.0, 1.0)
    is_alive = np.ones(len(flips), dtype=bool)
    is_rejected = False
    for look in sorted(spendable):
        statistic = np.abs(flips[:, :look] @ _scores(sizes[:look]))
        allowed = int(spendable[look] * len(flips) + 1e-9) - int(np.sum(~is_alive))
        threshold = _threshold(statistic[is_alive], allowed)
        is_alive &= statistic <= threshold
        is_rejected = bool(statistic[0] > threshold)
    return is_rejected


def _threshold(statistic: Floats, allowed: int) -> float:
    """The smallest value that at most `allowed` of the statistics exceed."""
    if allowed <= 0:
        return float("inf")
    if allowed >= statistic.size:
        return -1.0
    place = statistic.size - 1 - allowed
    # Sums of the same scores in another order differ in their last digits: they are ties.
    return float(np.partition(statistic, place)[place]) * (1 + 1e-9) + 1e-12


def _scores(sizes: Floats) -> Floats:
    limit = _SCORE_LIMIT * float(np.median(sizes))
    if limit == 0:
        return np.asarray(np.sign(sizes), dtype=float)
    return np.asarray(np.minimum(sizes, limit) / limit)


@cache
def _patterns(count: int) -> Floats:
    """Changes of signs by row, none first; a change and its opposite count as one."""
    if count <= _MAX_EXACT_VALUES:
        bits = (np.arange(2 ** (count - 1))[:, None] >> np.arange(count)) & 1
        return np.asarray(1.0 - 2.0 * bits)
    random = np.random.default_rng(count)
    signs = random.choice([-1.0, 1.0], size=(2 ** (_MAX_EXACT_VALUES - 1), count))
    signs[0] = 1.0
    return np.asarray(signs)
