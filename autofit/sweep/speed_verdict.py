"""Verdicts on the speeds of an entry, from its launches, its earlier nights and its reference.

If the old runtime was measured in the same rounds tonight, the pairs of launches decide, because
the state of the machine affects both sides. Otherwise tonight is compared with the nights of the
baseline. All metrics of an entry share one probability of a false claim, half for each
direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
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
from autofit.sweep.baseline_entry import BaselineEntry
from autofit.sweep.entry_record import EntryRecord
from autofit.sweep.verdict import Finding, MetricVerdict, Thresholds
from autofit.text_format import as_fast

# The probability that any speed of an entry is called slower or faster where none has changed.
ALPHA = 0.05
# The assumed deviation between nights, as a share, until the baseline's nights show it.
NIGHT_SD = 0.0075
_RATES = ("pp_per_s", "tg_per_s")
# A metric counts as the same if a loss of this many thresholds is ruled out.
_RULED_OUT = 2.0
_SHOWN_NIGHTS = 14


# A verdict, and the change of speed that it found, or None if that is unknown.
_Measured = tuple[MetricVerdict, Change | None]


def speed_verdicts(
    before: BaselineEntry | None, now: EntryRecord, thresholds: Thresholds
) -> list[MetricVerdict]:
    """Return the verdict on each speed that was measured tonight or earlier."""
    measured = [_measure(before, now, *speed) for speed in thresholds.speeds.items()]
    return _judge([one for one in measured if one[0].kept is not None or one[0].now is not None])


def changed_speeds(
    before: BaselineEntry, now: EntryRecord, thresholds: Thresholds
) -> list[MetricVerdict]:
    """Return the speeds by which tonight does not belong to the current level."""
    return _changes(
        _against_nights(before, now.values(metric), metric, threshold)
        for metric, threshold in thresholds.speeds.items()
    )


def changed_reference_speeds(
    before: BaselineEntry, now: EntryRecord, thresholds: Thresholds
) -> list[MetricVerdict]:
    """Return the speeds in which the reference changed, which shows that the machine changed."""
    return _changes(
        _against_nights(before, [old for old, _ in now.pairs(metric)], metric, threshold)
        for metric, threshold in thresholds.speeds.items()
    )


def unsteady_speeds(
    before: BaselineEntry, now: EntryRecord, thresholds: Thresholds
) -> Iterator[tuple[str, NightValue]]:
    """Yield the metrics whose launches vary more than in earlier nights, with their values."""
    for key in thresholds.speeds:
        nights = [night for level in before.values_by_level(key) for night in level]
        value = night_value(now.values(key))
        if value and nights and is_unsteady(nights, value):
            yield key, value


def _changes(measured: Iterable[_Measured]) -> list[MetricVerdict]:
    found = _judge(list(measured))
    return [one for one in found if one.is_regression or one.is_improvement]


def _measure(
    before: BaselineEntry | None, now: EntryRecord, metric: str, threshold: float
) -> _Measured:
    """Compare a metric with the reference, or else with earlier nights."""
    found = _against_nights(before or BaselineEntry(now), now.values(metric), metric, threshold)
    pairs = now.pairs(metric)
    if not pairs:
        return found
    old, new = ([pair[side] for pair in pairs] for side in (0, 1))
    draft = replace(
        found[0],
        against="reference",
        kept=_typical(night_value(old)),
        now=_typical(night_value(new)),
    )
    return draft, _speed_change(metric, change_in_pairs(old, new))


def _against_nights(
    before: BaselineEntry, values: Sequence[float], metric: str, threshold: float
) -> _Measured:
    now, levels = night_value(values), before.values_by_level(metric)
    history = before.history(metric)
    change = kept = None
    if levels:
        logs = [math.log(night.typical) for night in levels[-1]]
        kept = math.exp(sum(logs) / len(logs))
        if now is not None:
            steps = [math.log(after / earlier) for earlier, after in pairwise(history)]
            change = change_of_night(levels, now, NIGHT_SD, steps)
    draft = MetricVerdict(
        metric=metric,
        verdict="unknown",
        message="",
        kept=kept,
        now=_typical(now),
        threshold=threshold,
        nights=tuple(history[-_SHOWN_NIGHTS:]) + ((now.typical,) if now else ()),
    )
    return draft, _speed_change(metric, change)


def _typical(value: NightValue | None) -> float | None:
    return value.typical if value else None


def _speed_change(metric: str, change: Change | None) -> Change | None:
    """Convert the change of a metric to a change of speed, which is the inverse for seconds."""
    return change.inverse() if change is not None and metric not in _RATES else change


def _judge(measured: Sequence[_Measured]) -> list[MetricVerdict]:
    changes = {draft.metric: change for draft, change in measured if change is not None}
    slower = hochberg([change.p_value_below() for change in changes.values()])
    faster = hochberg([change.p_value_above() for change in changes.values()])
    p_values = {
        metric: min(1.0, 2 * min(pair))
        for metric, pair in zip(changes, zip(slower, faster, strict=True), strict=True)
    }
    return [
        _judge_metric(draft, change, p_values.get(draft.metric, 1.0)) for draft, change in measured
    ]


def _judge_metric(draft: MetricVerdict, change: Change | None, p: float) -> MetricVerdict:
    if change is not None:
        ratio, (low, high) = math.exp(change.log_ratio), change.interval()
        verdict = _finding(ratio, low, draft.threshold or 0.0, is_shown=p < ALPHA)
        draft = replace(draft, verdict=verdict, ratio=ratio, low=low, high=high, p=p)
    elif draft.kept is not None and draft.now is not None:
        # Too few launches cannot show that nothing changed.
        log_ratio = math.log(draft.now / draft.kept)
        ratio = math.exp(log_ratio if draft.metric in _RATES else -log_ratio)
        draft = replace(draft, verdict="undecided", ratio=ratio)
    return replace(draft, message=_message(draft))


def _finding(ratio: float, low: float, threshold: float, *, is_shown: bool) -> Finding:
    if is_shown and ratio < 1 / (1 + threshold):
        return "slower"
    if is_shown and ratio > 1 + threshold:
        return "faster"
    return "same" if low > 1 / (1 + _RULED_OUT * threshold) else "undecided"


def _message(found: MetricVerdict) -> str:
    unit = "tokens/s" if found.metric in _RATES else "s"
    if found.now is None:
        return "not measured tonight"
    now = f"{_four_digits(found.now)} {unit}"
    if found.kept is None:
        return f"{now}; no baseline yet"
    both = f"{now}, {found.against} {_four_digits(found.kept)} {unit}"
    if found.ratio is None or found.low is None:
        return f"{both}; too few launches for an interval"
    message = f"{as_fast(found.ratio, found.low, found.high)}: {both}"
    if found.verdict == "undecided":
        return f"{message}; more launches or nights may decide"
    return message


def _four_digits(value: float) -> str:
    """Format a number without a power of ten, as prompts reach tens of thousands of tokens/s."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004
