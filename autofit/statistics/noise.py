"""Noise between launches as a sign of its own, and cliffs: losses beyond it.

A candidate at the edge of memory loads differently each time, so launches that differ far
more than those of its peers mark a cliff as surely as a loss does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Literal

import numpy as np

from autofit.trial.metric import Metric, time_ratio

# A spread below this is nobody's trouble, however quiet the peers are.
MIN_SPREAD = 0.05
# Chance that a candidate as steady as its peers is called unsteady, over all candidates.
UNSTEADY_LEVEL = 0.01
# A loss is sharp from here on, and where it is at least three times what the same step
# costs elsewhere on the same line.
MIN_LOSS = 0.05
SHARPNESS = 3.0

Direction = Literal["up", "down"]


def spread(values: Sequence[float]) -> float | None:
    """The middle half of the values over their median, 0.05 being 5%; None below two."""
    if len(values) < 2:  # noqa: PLR2004 - one value has no spread
        return None
    low, high = np.percentile(values, [25, 75])
    return float((high - low) / median(values))


@dataclass(frozen=True, slots=True)
class Unsteady:
    """A candidate whose launches differ `times` as much as those of its peers."""

    key: str
    spread: float
    times: float
    n: int


def unsteady(launches: Mapping[str, Sequence[float]]) -> list[Unsteady]:
    """The candidates whose launches differ far more than their peers', worst first.

    `launches` holds one positive value per launch by candidate key. Variances of the
    logarithms are compared by an F-test with the median variance of the peers, so that one
    unsteady peer does not hide another; fewer than two launches say nothing.
    """
    from scipy.stats import f  # noqa: PLC0415 - takes half a second to import

    variances = {
        key: float(np.var(np.log(values), ddof=1))
        for key, values in launches.items()
        if len(values) > 1
    }
    found = []
    for key, variance in variances.items():
        peers = [other for other in variances if other != key]
        if not peers:
            continue
        usual = median(variances[other] for other in peers)
        freedom = sum(len(launches[other]) - 1 for other in peers)
        times = math.inf if usual == 0 else variance / usual
        chance = float(f.sf(times, len(launches[key]) - 1, freedom)) if usual else 0.0
        deviation = math.sqrt(variance)
        if deviation > MIN_SPREAD and chance < UNSTEADY_LEVEL / len(variances):
            found.append(Unsteady(key, deviation, math.sqrt(times), len(launches[key])))
    return sorted(found, key=lambda one: -one.spread)


@dataclass(frozen=True, slots=True)
class Cliff:
    """A sharp loss between two neighbours that both run.

    `ratio` is the speed at `to_value` over that at `from_value` (0.84 loses 16%), between
    `low` and `high`; these are None where too few launches tell their noise.
    """

    param: str
    from_value: float
    to_value: float
    metric: Metric
    ratio: float
    low: float | None
    high: float | None
    layout: str = ""
    cache_type: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The cliff as JSON data."""
        return {
            "param": self.param,
            "from": self.from_value,
            "to": self.to_value,
            "metric": self.metric,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "layout": self.layout,
            "cache_type": self.cache_type,
        }

    def __str__(self) -> str:
        loss = f"{self.param} {self.to_value:g} loses {1 - self.ratio:.0%} of {self.metric}"
        against = f" against {self.from_value:g}"
        if self.low is None or self.high is None:
            return loss + against
        return f"{loss}{against} ({1 - self.high:.0%} to {1 - self.low:.0%})"


def cliffs(
    param: str,
    launches: Mapping[float, Sequence[float]],
    metric: Metric,
    *,
    toward: Direction,
    noise: float | None = None,
    layout: str = "",
    cache_type: str = "",
) -> list[Cliff]:
    """The sharp losses along one parameter, all else being equal.

    `launches` holds the metric once per launch by the parameter's value; `toward` is the
    direction that asks more of the device (`down` for n_cpu_moe, `up` for ubatch).
    `noise` is the relative standard deviation of one launch where it is known from
    elsewhere; else it is told from values launched more than once, and where there are
    none either, a loss has no interval and must be twice as large to count.
    """
    values = sorted((v for v in launches if launches[v]), reverse=toward == "down")
    steps = list(pairwise(values))
    half = _half_width(launches) if noise is None else 1.96 * noise
    changes = [
        math.log(time_ratio(_typical(launches[a]), _typical(launches[b]), metric))
        for a, b in steps
    ]
    found = []
    for place, ((before, after), change) in enumerate(zip(steps, changes, strict=True)):
        low, high = _interval(change, half, len(launches[before]), len(launches[after]))
        needed = math.log1p(-(MIN_LOSS if high is not None else 2 * MIN_LOSS))
        if change > needed or (high is not None and high >= 0):
            continue
        if change > SHARPNESS * abs(before - after) * -_usual_slope(steps, changes, place):
            continue
        found.append(
            Cliff(
                param,
                before,
                after,
                metric,
                ratio=math.exp(change),
                low=None if low is None else math.exp(low),
                high=None if high is None else math.exp(high),
                layout=layout,
                cache_type=cache_type,
            )
        )
    return found


def _typical(values: Sequence[float]) -> float:
    return math.exp(median(math.log(value) for value in values))


def _usual_slope(
    steps: Sequence[tuple[float, float]], changes: Sequence[float], left_out: int
) -> float:
    """The median loss per unit of the other steps, 0 where they gain."""
    slopes = [
        -change / abs(a - b)
        for place, ((a, b), change) in enumerate(zip(steps, changes, strict=True))
        if place != left_out
    ]
    return max(median(slopes), 0.0) if slopes else 0.0


def _half_width(launches: Mapping[float, Sequence[float]]) -> float | None:
    """Half of a 95% t-interval of one launch's logarithm, from all repeated values."""
    from scipy.special import stdtrit  # noqa: PLC0415 - heavy

    logs = [np.log(values) for values in launches.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in logs)
    if not freedom:
        return None
    squares = sum(float(np.sum((values - values.mean()) ** 2)) for values in logs)
    return float(stdtrit(freedom, 0.975)) * math.sqrt(squares / freedom)


def _interval(
    change: float, half: float | None, n_before: int, n_after: int
) -> tuple[float, float] | tuple[None, None]:
    """95% limits of a difference of two means of logarithms."""
    if half is None:
        return None, None
    half *= math.sqrt(1 / n_before + 1 / n_after)
    return change - half, change + half
