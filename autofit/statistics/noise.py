"""Noise between launches, and cliffs: losses beyond that noise.

A candidate that barely fits into memory loads differently each time. So a candidate whose launches
differ far more than those of others is close to the limit, as one at a cliff is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Literal

import numpy as np

from autofit.trial.metric import Metric, time_ratio

# A smaller standard deviation disturbs no decision, however steady the other candidates are.
MIN_SPREAD = 0.05
# Probability, over all candidates, that one as steady as the others is called unsteady.
UNSTEADY_LEVEL = 0.01
# A cliff loses at least this share, and at least three times what the same step costs
# elsewhere along the parameter. Steps of 16% and more are reported for one layer too many;
# a step of a few percent is the usual price of another host layer.
MIN_LOSS = 0.10
MIN_LOSS_WITHOUT_NOISE = 0.15
SHARPNESS = 3.0

Direction = Literal["up", "down"]


@dataclass(frozen=True, slots=True)
class UnsteadyCandidate:
    """A candidate whose `n` launches differ far more than those of others.

    `spread` is the standard deviation of their logarithms, which is `times` the usual one.
    """

    key: str
    spread: float
    times: float
    n: int


def find_unsteady(launches: Mapping[str, Sequence[float]]) -> list[UnsteadyCandidate]:
    """Return the candidates whose launches differ far more than those of others, worst first.

    An F-test compares the variance of a candidate's logarithms with the median variance of the
    others. The median keeps one unsteady candidate from hiding another. Candidates with a
    single launch are ignored. `launches` maps a candidate key to one positive value per launch.
    """
    from scipy.stats import f  # noqa: PLC0415 - takes half a second to import

    variances = {
        key: float(np.var(np.log(values), ddof=1))
        for key, values in launches.items()
        if len(values) > 1
    }
    found = []
    for key, variance in variances.items():
        others = [other for other in variances if other != key]
        if not others:
            continue
        usual = median(variances[other] for other in others)
        freedom = sum(len(launches[other]) - 1 for other in others)
        times = math.inf if usual == 0 else variance / usual
        p_value = float(f.sf(times, len(launches[key]) - 1, freedom)) if usual else 0.0
        deviation = math.sqrt(variance)
        if deviation > MIN_SPREAD and p_value < UNSTEADY_LEVEL / len(variances):
            found.append(UnsteadyCandidate(key, deviation, math.sqrt(times), len(launches[key])))
    return sorted(found, key=lambda one: -one.spread)


@dataclass(frozen=True, slots=True)
class Cliff:
    """A sharp loss between two neighbours that both run.

    `ratio` is the speed at `to_value` over that at `from_value`: 0.84 loses 16%. `low` and
    `high` are the limits of its interval, None if too few launches show the noise.
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
        """Return the cliff as JSON data."""
        data = asdict(self)
        return {"from": data.pop("from_value"), "to": data.pop("to_value"), **data}

    def __str__(self) -> str:
        loss = f"{self.param} {self.to_value:g} loses {1 - self.ratio:.0%} of {self.metric}"
        against = f" against {self.from_value:g}"
        if self.low is None or self.high is None:
            return loss + against
        return f"{loss}{against} ({1 - self.high:.0%} to {1 - self.low:.0%})"


def find_cliffs(
    param: str,
    launches: Mapping[float, Sequence[float]],
    metric: Metric,
    *,
    toward: Direction,
    noise: float | None = None,
    layout: str = "",
    cache_type: str = "",
) -> list[Cliff]:
    """Return the sharp losses along one parameter, all else being equal.

    `launches` maps a value of the parameter to the metric of each launch. `toward` is the
    direction that needs more device memory: `down` for n_cpu_moe, `up` for ubatch. `noise` is the
    relative standard deviation of one launch; None estimates it from values launched more than
    once. If there is no such value, a loss has no interval and must be larger to count. `layout`
    and `cache_type` are recorded in the result.
    """
    values = sorted((v for v in launches if launches[v]), reverse=toward == "down")
    steps = list(pairwise(values))
    half = _half_width(launches) if noise is None else 1.96 * noise
    changes = [
        math.log(time_ratio(_log_median(launches[a]), _log_median(launches[b]), metric))
        for a, b in steps
    ]
    found = []
    for index, ((before, after), change) in enumerate(zip(steps, changes, strict=True)):
        low, high = _interval(change, half, len(launches[before]), len(launches[after]))
        needed = math.log1p(-(MIN_LOSS if high is not None else MIN_LOSS_WITHOUT_NOISE))
        if change > needed or (high is not None and high >= 0):
            continue
        if change > SHARPNESS * abs(before - after) * -_usual_slope(steps, changes, index):
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


def _log_median(values: Sequence[float]) -> float:
    return math.exp(median(math.log(value) for value in values))


def _usual_slope(
    steps: Sequence[tuple[float, float]], changes: Sequence[float], left_out: int
) -> float:
    """Return the median loss per unit of the other steps, or 0 if they gain."""
    slopes = [
        -change / abs(a - b)
        for index, ((a, b), change) in enumerate(zip(steps, changes, strict=True))
        if index != left_out
    ]
    return max(median(slopes), 0.0) if slopes else 0.0


def _half_width(launches: Mapping[float, Sequence[float]]) -> float | None:
    """Return half a 95% t-interval of one launch's logarithm, or None if none is repeated."""
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
    """Return 95% limits of a difference of two means of logarithms."""
    if half is None:
        return None, None
    half *= math.sqrt(1 / n_before + 1 / n_after)
    return change - half, change + half
