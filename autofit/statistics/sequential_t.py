"""Exact critical values of a t-test that is looked at after every added value.

Under the null hypothesis of normal values around zero, r = sum / sqrt(n * sum of squares)
is a Markov chain: the next value divided by the root of the sum of squares so far is
independent of all earlier r, and r of the next look follows from both. So the chance of
crossing a series of boundaries is a one-dimensional recursion, as in Jennison and Turnbull,
"Exact calculations for sequential t, chi-square and F tests", Biometrika 78 (1991) 133-141.
No library that could be had computes it: group-sequential packages stop at the normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FIRST_LOOK = 3
# Cells between the boundaries; 400 instead of 200 move no critical value by more than 0.5%.
_CELLS = 200

Floats = NDArray[np.float64]


@cache
def critical_values(spent: tuple[float, ...]) -> tuple[float, ...]:
    """Two-sided critical values of t at looks 3, 4, ..., one for each amount spent.

    `spent` is the chance that any look so far rejects a true null hypothesis; it rises.
    """
    from scipy.optimize import brentq  # noqa: PLC0415 - heavy
    from scipy.special import stdtr, stdtrit  # noqa: PLC0415 - heavy

    n = FIRST_LOOK
    critical = [float(-stdtrit(n - 1, spent[0] / 2))]
    edges = _edges(_correlation(critical[0], n))
    mass = np.diff(stdtr(n - 1, _t(edges, n)))
    for before, after in pairwise(spent):
        middles = np.sin((np.arcsin(edges[1:]) + np.arcsin(edges[:-1])) / 2)

        def excess(
            r: float,
            mass: Floats = mass,
            middles: Floats = middles,
            n: int = n,
            share: float = after - before,
        ) -> float:
            inside = _next_below(r, middles, n) - _next_below(-r, middles, n)
            return float(mass @ (1 - inside)) - share

        r = float(brentq(excess, 1e-3, 1 - 1e-12, xtol=1e-12))
        edges = _edges(r)
        mass = mass @ np.diff(_next_below(edges[None, :], middles[:, None], n), axis=1)
        n += 1
        critical.append(float(_t(r, n)))
    return tuple(critical)


def interval(values: Sequence[float], critical: float) -> tuple[float, float]:
    """The means that a t-test with this critical value does not reject."""
    data = np.asarray(values, dtype=float)
    mean = float(np.mean(data))
    half = critical * float(np.std(data, ddof=1)) / data.size**0.5
    return mean - half, mean + half


def _t(r: Floats | float, n: int) -> Floats:
    return np.asarray(r * np.sqrt((n - 1) / np.maximum(1 - np.square(r), 1e-300)))


def _correlation(t: float, n: int) -> float:
    return t / float(np.sqrt(n - 1 + t * t))


def _edges(limit: float) -> Floats:
    # Even in the angle, which keeps cells fine where small looks have most of their mass.
    return np.asarray(np.sin(np.linspace(-np.arcsin(limit), np.arcsin(limit), _CELLS + 1)))


def _next_below(limit: Floats | float, r: Floats, n: int) -> Floats:
    """P(r of look n + 1 <= limit | r of look n).

    With u = next value / sqrt(sum of squares) = tan(psi), a t variable over sqrt(n),
    r' = (sqrt(n) r cos(psi) + sin(psi)) / sqrt(n + 1), a sine shifted by atan(sqrt(n) r).
    """
    from scipy.special import stdtr  # noqa: PLC0415 - heavy

    mirrored = r < 0
    size = np.abs(r)
    shift = np.arctan(np.sqrt(n) * size)
    height = np.where(mirrored, -1, 1) * limit * np.sqrt((n + 1) / (n * size**2 + 1))
    angle = np.arcsin(np.clip(height, -1, 1))

    def below(psi: Floats) -> Floats:
        inner = np.clip(psi, 1e-12 - np.pi / 2, np.pi / 2 - 1e-12)
        return np.asarray(stdtr(n, np.sqrt(n) * np.tan(inner)))

    chance = below(angle - shift) + 1 - below(np.pi - angle - shift)
    return np.asarray(np.where(mirrored, 1 - chance, chance))
