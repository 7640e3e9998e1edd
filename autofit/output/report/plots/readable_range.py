"""The range of an axis or of a colour scale that a few very slow launches would make too long."""

from __future__ import annotations

from collections.abc import Sequence

# At most this share of the launches, the slowest, is off the scale,
_MOST_OFF_SCALE = 0.2
# and only if the scale becomes shorter by at least this factor.
_LEAST_FACTOR = 3.0
_PADDING = 0.08


def readable_range(
    values: Sequence[float], *, is_higher_better: bool, kept: Sequence[float] = ()
) -> tuple[float, float] | None:
    """Return the ends of a scale without the slowest launches, or None if none is left out.

    The values `kept` are on the scale in any case.
    """
    best_first = sorted(values, reverse=is_higher_better)

    def span(count: int) -> tuple[float, float]:
        shown = [*best_first[: len(best_first) - count], *kept]
        return min(shown), max(shown)

    left_out = 0
    for count in range(1, int((len(values) + 1) * _MOST_OFF_SCALE) + 1):
        if _length(span(count)) * _LEAST_FACTOR < _length(span(left_out)):
            left_out = count
    if not left_out:
        return None
    low, high = span(left_out)
    padding = _PADDING * (high - low or abs(high))
    return low - padding, high + padding


def _length(ends: tuple[float, float]) -> float:
    return ends[1] - ends[0]
