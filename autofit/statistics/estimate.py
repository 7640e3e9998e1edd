"""A statistic of a few positive values with an interval that covers what it says.

A launch is slow, so there are seldom more than a dozen values. A bootstrap of a median
covers 76% of the time at three values where it says 95%, so it is not used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Fewer values give no interval: two say nothing about their own spread.
MIN_VALUES = 3
# From here on the smallest and the largest value alone enclose the median in 95% of cases.
MIN_ORDER_STATISTICS = 6
# Values that differ by less, as a share, are the same: the rest is rounding.
_SAME = 1e-9
# Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993): |modified z| above 3.5.
OUTLIER_Z = 3.5
MIN_FOR_OUTLIERS = 5


@dataclass(frozen=True, slots=True)
class Estimate:
    """The middle of `n` values and its interval, both None below three values."""

    median: float
    low: float | None
    high: float | None
    n: int

    def to_dict(self) -> dict[str, Any]:
        """The estimate as JSON data."""
        return asdict(self)

    def inverse(self) -> Estimate:
        """The estimate of the reciprocal, as when a ratio is read the other way round."""
        return Estimate(
            1 / self.median,
            None if self.high is None else 1 / self.high,
            None if self.low is None else 1 / self.low,
            self.n,
        )


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate | None:
    """The median of positive values with its interval, or None for no values.

    Below six values the interval is Student's t of the logarithms, exact where the noise
    multiplies; from six on it is made of order statistics (`scipy.stats.quantile_test`),
    exact whatever the noise. No value is left out.

    Raises:
        ValueError: a value is not a positive, finite number.
    """
    data = np.asarray(values, dtype=float)
    if not np.all(np.isfinite(data)) or np.any(data <= 0):
        raise ValueError(f"an estimate needs positive values, not {list(values)}")
    if data.size == 0:
        return None
    median = float(np.median(data))
    if data.size < MIN_VALUES:
        return Estimate(median, None, None, int(data.size))
    if np.ptp(data) <= _SAME * median:
        return Estimate(median, median, median, int(data.size))
    low, high = _order_statistics(data, confidence) or _log_t(data, confidence)
    return Estimate(median, min(low, median), max(high, median), int(data.size))


def center(values: Sequence[float]) -> float:
    """The Hodges-Lehmann estimate: the median of the means of all pairs of values.

    For symmetric noise it wastes 5% of normal data, where a plain median wastes 36%, and
    outliers hardly move it.
    """
    data = np.asarray(values, dtype=float)
    rows, columns = np.triu_indices(data.size)
    return float(np.median((data[rows] + data[columns]) / 2))


def outliers(values: Sequence[float], threshold: float = OUTLIER_Z) -> tuple[int, ...]:
    """The places of values far from the rest, by the modified z-score; for display only.

    With fewer than five values none can be told from noise.
    """
    data = np.asarray(values, dtype=float)
    if data.size < MIN_FOR_OUTLIERS:
        return ()
    distance = np.abs(data - np.median(data))
    # Where more than half of the values agree the median deviation is 0, and the mean
    # deviation takes its place; 1.4826 and 1.2533 make both a standard deviation.
    scale = 1.4826 * np.median(distance) or 1.2533 * np.mean(distance)
    if scale == 0:
        return ()
    return tuple(int(place) for place in np.flatnonzero(distance / scale > threshold))


def _order_statistics(data: np.ndarray, confidence: float) -> tuple[float, float] | None:
    if data.size < MIN_ORDER_STATISTICS:
        return None
    from scipy import stats  # noqa: PLC0415 - takes half a second to import

    interval = stats.quantile_test(data, p=0.5).confidence_interval(confidence)
    if not np.isfinite([interval.low, interval.high]).all():
        return None
    return float(interval.low), float(interval.high)


def _log_t(data: np.ndarray, confidence: float) -> tuple[float, float]:
    from scipy import stats  # noqa: PLC0415 - takes half a second to import

    interval = stats.ttest_1samp(np.log(data), 0.0).confidence_interval(confidence)
    return float(np.exp(interval.low)), float(np.exp(interval.high))
