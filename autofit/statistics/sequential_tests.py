"""Two tests that may be repeated after every added value, and their confidence intervals.

The group-sequential t-test is exact for normal values. Under the null hypothesis the statistic
r = sum / sqrt(n * sum of squares) is a Markov chain: the next value divided by the root of the
sum of squares so far is independent of all earlier r, and the next r follows from both. So the
probability of crossing a series of boundaries is a one-dimensional recursion (Jennison and
Turnbull, "Exact calculations for sequential t, chi-square and F tests", Biometrika 78 (1991)
133-141). Group-sequential packages stop at the normal distribution, so it is computed here.

The sign-flip test is exact for any noise: drift, bursts, heavy tails, a variance that changes.
In each round the contenders run in random order. If they are equal, the sign of the difference
of their logarithms is a fair coin. The test compares the observed signs with all others, over
all looks together (a randomization test, Fisher 1935). Differences are weighted by Huber's
score, so an outlier counts as a large difference and not as a huge one.

In both, a "look" is one evaluation of the test, named by the number of values at it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FIRST_LOOK = 3
# Cells between the boundaries. With 400 instead of 200 cells no critical value moves by more
# than 0.5%.
_CELLS = 200
# Huber's score is capped at this many median sizes (1.4826 makes a median size a standard
# deviation). In simulations of 12 rounds the test has the power of a t-test on normal noise,
# and twice its power under bursts.
_SCORE_LIMIT = 1.4826
# Up to this many values all sign patterns are compared, beyond it a random sample of them.
_MAX_EXACT_VALUES = 15
_BISECTIONS = 14

Floats = NDArray[np.float64]


# ---- t-test


@cache
def t_critical_values(spent: tuple[float, ...]) -> tuple[float, ...]:
    """Return two-sided critical values of t for looks 3, 4, ..., one for each entry of `spent`.

    `spent[i]` is the probability that any look up to 3 + i rejects a true null hypothesis. It
    increases with i.
    """
    from scipy.optimize import brentq  # noqa: PLC0415 - heavy
    from scipy.special import stdtr, stdtrit  # noqa: PLC0415 - heavy

    n = FIRST_LOOK
    critical = [float(-stdtrit(n - 1, spent[0] / 2))]
    edges = _cell_edges(_r_of_t(critical[0], n))
    mass = np.diff(stdtr(n - 1, _t_of_r(edges, n)))
    for before, after in pairwise(spent):
        middles = np.sin((np.arcsin(edges[1:]) + np.arcsin(edges[:-1])) / 2)

        def excess(
            r: float,
            mass: Floats = mass,
            middles: Floats = middles,
            n: int = n,
            share: float = after - before,
        ) -> float:
            inside = _next_r_cdf(r, middles, n) - _next_r_cdf(-r, middles, n)
            return float(mass @ (1 - inside)) - share

        r = float(brentq(excess, 1e-3, 1 - 1e-12, xtol=1e-12))
        edges = _cell_edges(r)
        mass = mass @ np.diff(_next_r_cdf(edges[None, :], middles[:, None], n), axis=1)
        n += 1
        critical.append(float(_t_of_r(r, n)))
    return tuple(critical)


def t_interval(values: Sequence[float], critical: float) -> tuple[float, float]:
    """Return the limits of the means that a t-test with this critical value does not reject."""
    data = np.asarray(values, dtype=float)
    mean = float(np.mean(data))
    half = critical * float(np.std(data, ddof=1)) / data.size**0.5
    return mean - half, mean + half


def _t_of_r(r: Floats | float, n: int) -> Floats:
    return np.asarray(r * np.sqrt((n - 1) / np.maximum(1 - np.square(r), 1e-300)))


def _r_of_t(t: float, n: int) -> float:
    return t / float(np.sqrt(n - 1 + t * t))


def _cell_edges(limit: float) -> Floats:
    # Cells are of equal angle, so they are fine where early looks have most of their mass.
    return np.asarray(np.sin(np.linspace(-np.arcsin(limit), np.arcsin(limit), _CELLS + 1)))


def _next_r_cdf(limit: Floats | float, r: Floats, n: int) -> Floats:
    """Return P(r of look n + 1 <= limit | r of look n).

    With u = next value / sqrt(sum of squares) = tan(psi), a t variable over sqrt(n),
    r' = (sqrt(n) r cos(psi) + sin(psi)) / sqrt(n + 1), a sine shifted by atan(sqrt(n) r).
    """
    from scipy.special import stdtr  # noqa: PLC0415 - heavy

    is_mirrored = r < 0
    size = np.abs(r)
    shift = np.arctan(np.sqrt(n) * size)
    height = np.where(is_mirrored, -1, 1) * limit * np.sqrt((n + 1) / (n * size**2 + 1))
    angle = np.arcsin(np.clip(height, -1, 1))

    def cdf(psi: Floats) -> Floats:
        inner = np.clip(psi, 1e-12 - np.pi / 2, np.pi / 2 - 1e-12)
        return np.asarray(stdtr(n, np.sqrt(n) * np.tan(inner)))

    probability = cdf(angle - shift) + 1 - cdf(np.pi - angle - shift)
    return np.asarray(np.where(is_mirrored, 1 - probability, probability))


# ---- sign-flip test


def sign_flip_interval(
    values: Sequence[float], spendable: Mapping[int, float], center: float
) -> tuple[float, float]:
    """Return the limits of the shifts that the test does not reject at its last look.

    A limit is infinite if the test is not able to reject anything on that side.

    Args:
        values: all values; the last look is at all of them.
        spendable: for each look, the probability of a false rejection up to and with that look.
        center: a shift inside the interval.
    """
    data = np.asarray(values, dtype=float)

    def rejects(shift: float) -> bool:
        return sign_flip_rejects_zero(data - shift, spendable)

    reach = max(float(np.ptp(data)), abs(center) * 1e-9, 1e-12)
    return _limit(rejects, center, -reach), _limit(rejects, center, reach)


def _limit(rejects: Callable[[float], bool], center: float, reach: float) -> float:
    # Beyond all values every sign is the same, so a shift that is not rejected there is never
    # rejected.
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


def sign_flip_rejects_zero(values: Floats, spendable: Mapping[int, float]) -> bool:
    """Return whether the last look rejects that the values lie symmetrically around zero.

    Each look rejects the most extreme sign patterns that no earlier look rejected, as many as
    the probability spendable up to it allows.
    """
    sizes = np.abs(values)
    # The first pattern is the observed one, so it is among those it is compared with.
    flips = _sign_patterns(values.size) * np.where(values < 0, -1.0, 1.0)
    is_alive = np.ones(len(flips), dtype=bool)
    is_rejected = False
    for look in sorted(spendable):
        statistic = np.abs(flips[:, :look] @ _huber_scores(sizes[:look]))
        allowed = int(spendable[look] * len(flips) + 1e-9) - int(np.sum(~is_alive))
        threshold = _threshold(statistic[is_alive], allowed)
        is_alive &= statistic <= threshold
        is_rejected = bool(statistic[0] > threshold)
    return is_rejected


def _threshold(statistic: Floats, allowed: int) -> float:
    """Return the smallest value that at most `allowed` of the statistics exceed."""
    if allowed <= 0:
        return float("inf")
    if allowed >= statistic.size:
        return -1.0
    index = statistic.size - 1 - allowed
    # Sums of the same scores in another order differ in their last digits. They are ties.
    return float(np.partition(statistic, index)[index]) * (1 + 1e-9) + 1e-12


def _huber_scores(sizes: Floats) -> Floats:
    limit = _SCORE_LIMIT * float(np.median(sizes))
    if limit == 0:
        return np.asarray(np.sign(sizes), dtype=float)
    return np.asarray(np.minimum(sizes, limit) / limit)


@cache
def _sign_patterns(count: int) -> Floats:
    """Return patterns of sign changes, one per row; the first changes nothing.

    A pattern and its opposite give the same statistic, so only one of the two is listed.
    """
    if count <= _MAX_EXACT_VALUES:
        bits = (np.arange(2 ** (count - 1))[:, None] >> np.arange(count)) & 1
        return np.asarray(1.0 - 2.0 * bits)
    random = np.random.default_rng(count)
    signs = random.choice([-1.0, 1.0], size=(2 ** (_MAX_EXACT_VALUES - 1), count))
    signs[0] = 1.0
    return np.asarray(signs)
