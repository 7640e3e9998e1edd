"""The median of a few positive values, with an interval whose real coverage is as stated.

A launch is slow, so there are seldom more than a dozen values. A bootstrap interval of a
median is not used: at three values its real coverage is 76% instead of 95%.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Two values say nothing about their own spread, so they give no interval.
MIN_VALUES = 3
# From six values on, the smallest and the largest enclose the median in 95% of cases.
MIN_ORDER_STATISTICS = 6
# Values that differ by a smaller share are equal: the rest is rounding.
_SAME = 1e-9
# Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993): |modified z| above 3.5.
OUTLIER_Z = 3.5
MIN_FOR_OUTLIERS = 5


@dataclass(frozen=True, slots=True)
class Estimate:
    """The median of `n` values and the limits of its interval, or None below three values."""

    median: float
    low: float | None
    high: float | None
    n: int

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as JSON data."""
        return asdict(self)

    def inverse(self) -> Estimate:
        """Return the estimate of the reciprocal, such as B/A instead of A/B."""
        return Estimate(
            1 / self.median,
            None if self.high is None else 1 / self.high,
            None if self.low is None else 1 / self.low,
            self.n,
        )


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate | None:
    """Return the median of positive values with its interval, or None if there are no values.

    Below six values the interval is Student's t of the logarithms, which is exact for
    log-normal noise. From six values on it is made of order statistics
    (`scipy.stats.quantile_test`), which is exact for any noise. No value is left out.

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
    """Return the Hodges-Lehmann estimate: the median of the means of all pairs of values.

    Outliers hardly move it. On normal data its efficiency is 95% of that of the mean; the
    median's is 64%.
    """
    data = np.asarray(values, dtype=float)
    rows, columns = np.triu_indices(data.size)
    return float(np.median((data[rows] + data[columns]) / 2))


def outliers(values: Sequence[float], threshold: float = OUTLIER_Z) -> tuple[int, ...]:
    """Return the indices of values with a large modified z-score, for display only.

    Fewer than five values have no outliers: one cannot be distinguished from noise.
    """
    data = np.asarray(values, dtype=float)
    if data.size < MIN_FOR_OUTLIERS:
        return ()
    distance = np.abs(data - np.median(data))
    # The median deviation is 0 if more than half of the values are equal; the mean deviation
    # replaces it then. The factors 1.4826 and 1.2533 make both a standard deviation.
    scale = 1.4826 * np.median(distance) or 1.2533 * np.mean(distance)
    if scale == 0:
        return ()
    return tuple(int(index) for index in np.flatnonzero(distance / scale > threshold))


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
