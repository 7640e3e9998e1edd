"""Whether an entry became slower or faster, by its launches, its nights and its reference.

Where the old runtime was measured again tonight, in the same rounds, the pairs decide: what the
machine does to both cancels out. Otherwise tonight is one night beside the kept ones. The
chance of a false claim is shared by an entry's metrics, half of it for each direction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from autofit.statistics.night_change import (
    Change,
    NightValue,
    change_in_pairs,
    change_of_night,
    hochberg,
    is_unsteady,
    night_value,
)
from autofit.sweep.entry_record import EntryRecord
from autofit.sweep.kept_night import Kept
from autofit.sweep.thresholds import Thresholds
from autofit.sweep.verdict import Against, Finding, MetricVerdict

_RATES = ("pp_per_s", "tg_per_s")
_UNITS = {"pp_per_s": "tokens/s", "tg_per_s": "tokens/s"}
# A loss so many times the smallest that counts must be ruled out for a metric to be the same.
_RULED_OUT = 2.0
_SHOWN_NIGHTS = 14
_READABLE_SHARE = 1.0


@dataclass(frozen=True, slots=True)
class _Figure:
    """A metric on both sides; the change is that of speed, None where it cannot be told."""

    key: str
    against: Against
    kept: float | None
    now: float | None
    change: Change | None
    nights: tuple[float, ...] = ()


def speed_verdicts(
    kept: Kept | None, now: EntryRecord, thresholds: Thresholds
) -> list[MetricVerdict]:
    """The verdicts on all metrics of speed that are known of tonight or of before."""
    figures = [
        figure
        for key in thresholds.speeds
        if (figure := _figure(key, kept, now, thresholds.night_sd))
    ]
    return _verdicts(figures, thresholds)


def moved(kept: Kept, now: EntryRecord, thresholds: Thresholds) -> list[MetricVerdict]:
    """The metrics of tonight's launches that lie around another level than the kept nights."""
    figures = [
        _beside_nights(key, kept, now.values(key), thresholds.night_sd)
        for key in thresholds.speeds
    ]
    return _changed(figures, thresholds)


def reference_moved(kept: Kept, now: EntryRecord, thresholds: Thresholds) -> list[MetricVerdict]:
    """The metrics in which the reference, the same as before, is another tonight.

    Then it is the machine that changed.
    """
    figures = [
        _beside_nights(key, kept, [old for old, _ in now.pairs(key)], thresholds.night_sd)
        for key in thresholds.speeds
    ]
    return _changed(figures, thresholds)


def unsteady(kept: Kept, now: EntryRecord, thresholds: Thresholds) -> dict[str, NightValue]:
    """The metrics whose launches vary more tonight than in the kept nights, with their values."""
    found = {}
    for key in thresholds.speeds:
        levels, value = kept.levels(key), night_value(now.values(key))
        if value and levels and is_unsteady([n for level in levels for n in level], value):
            found[key] = value
    return found


def _figure(key: str, kept: Kept | None, now: EntryRecord, night_sd: float) -> _Figure | None:
    figure = _beside_nights(key, kept or Kept(now), now.values(key), night_sd)
    if figure.kept is None and figure.now is None:
        return None
    pairs = now.pairs(key)
    if not pairs:
        return figure
    old, new = ([pair[side] for pair in pairs] for side in (0, 1))
    return replace(
        figure,
        against="reference",
        kept=_typical(night_value(old)),
        now=_typical(night_value(new)),
        change=_of_speed(key, change_in_pairs(old, new)),
    )


def _beside_nights(key: str, kept: Kept, values: list[float], night_sd: float) -> _Figure:
    now, levels, course = night_value(values), kept.levels(key), kept.course(key)
    change = before = None
    if levels:
        logs = [math.log(night.typical) for night in levels[-1]]
        before = math.exp(sum(logs) / len(logs))
        if now is not None:
            steps = [math.log(after / earlier) for earlier, after in pairwise(course)]
            change = change_of_night(levels, now, night_sd, steps)
    nights = tuple(course[-_SHOWN_NIGHTS:]) + ((now.typical,) if now else ())
    return _Figure(key, "baseline", before, _typical(now), _of_speed(key, change), nights)


def _typical(value: NightValue | None) -> float | None:
    return value.typical if value else None


def _of_speed(key: str, change: Change | None) -> Change | None:
    """The change of a figure as one of speed: of seconds it is the other way round."""
    return change.inverse() if change is not None and key not in _RATES else change


def _log_speed(key: str, old: float, new: float) -> float:
    return math.log(new / old) if key in _RATES else math.log(old / new)


def _changed(figures: list[_Figure], thresholds: Thresholds) -> list[MetricVerdict]:
    found = _verdicts(figures, thresholds)
    return [one for one in found if one.is_regression or one.is_improvement]


def _verdicts(figures: list[_Figure], thresholds: Thresholds) -> list[MetricVerdict]:
    told = [(figure, figure.change) for figure in figures if figure.change is not None]
    slower = hochberg([change.p_value_below() for _, change in told])
    faster = hochberg([change.p_value_above() for _, change in told])
    chances = {
        figure.key: pair
        for (figure, _), pair in zip(told, zip(slower, faster, strict=True), strict=True)
    }
    return [_verdict(figure, chances, thresholds) for figure in figures]


def _verdict(
    figure: _Figure, chances: Mapping[str, tuple[float, float]], thresholds: Thresholds
) -> MetricVerdict:
    change, threshold = figure.change, thresholds.speeds[figure.key]
    ratio = low = high = p = None
    verdict: Finding = "unknown"
    if change is not None:
        ratio, (low, high) = math.exp(change.log_ratio), change.interval()
        p_slower, p_faster = chances[figure.key]
        p = min(1.0, 2 * min(p_slower, p_faster))
        is_shown = p < thresholds.alpha
        verdict = _finding(ratio, low, threshold, is_shown=is_shown)
    elif figure.kept is not None and figure.now is not None:
        # That too little was measured does not show that nothing changed.
        verdict = "undecided"
        ratio = math.exp(_log_speed(figure.key, figure.kept, figure.now))
    return MetricVerdict(
        metric=figure.key,
        verdict=verdict,
        words=_words(figure, verdict, ratio, low, high),
        kept=figure.kept,
        now=figure.now,
        ratio=ratio,
        low=low,
        high=high,
        p=p,
        threshold=threshold,
        against=figure.against,
        nights=figure.nights,
    )


def _finding(ratio: float, low: float, threshold: float, *, is_shown: bool) -> Finding:
    if is_shown and ratio < 1 / (1 + threshold):
        return "slower"
    if is_shown and ratio > 1 + threshold:
        return "faster"
    return "same" if low > 1 / (1 + _RULED_OUT * threshold) else "undecided"


def _words(
    figure: _Figure, verdict: Finding, ratio: float | None, low: float | None, high: float | None
) -> str:
    unit = _UNITS.get(figure.key, "s")
    before = "the reference's" if figure.against == "reference" else "the kept"
    if figure.now is None:
        return "not measured tonight"
    if figure.kept is None:
        return f"{_number(figure.now)} {unit}; nothing is kept to compare with"
    both = f"{_number(figure.now)} {unit} beside {before} {_number(figure.kept)}"
    if ratio is None or low is None or high is None:
        return f"undecided: {both}; too few launches to tell their noise"
    interval = f"{ratio:.3g} times as fast ({low:.3g} to {high:.3g})"
    if verdict in ("slower", "faster"):
        share = abs(_share(ratio))
        # Beyond that the factor, which stands beside it, reads better.
        lead = f"{share:.1%} {verdict}" if share < _READABLE_SHARE else f"much {verdict}"
        return f"{lead}: {both}, {interval}"
    if verdict == "same":
        return f"no change shown: {both}, {interval}"
    return f"undecided: {both}, {interval}; more launches or nights would tell"


def _number(value: float) -> str:
    """Four digits, and never a power of ten: prompts reach tens of thousands of tokens/s."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004


def _share(ratio: float) -> float:
    """The change in time: 0.06 where a request takes 6% longer."""
    return 1 / ratio - 1 if ratio < 1 else ratio - 1
