"""Whether tonight's launches differ from those of earlier nights.

Launches of one night share the state of the machine, so they vary less than nights do: a test
that takes all launches for independent calls every other null night a change. Here a night is
one value, and the variance of a change has three parts: between nights, within tonight, within
the kept nights, with the degrees of freedom of their sum (Satterthwaite 1946). Few nights tell
little of how nights vary, so their variance begins with a prior that counts as so many nights
and gives way as nights accumulate, as in a moderated t-test (Smyth 2004).

A night's value is a trimmed mean of logarithms with its winsorized variance (Yuen 1974): with
eight launches at 3% noise and one kept night it finds 87% of the slowdowns by 6%, where a mean
finds 91%, and 76% instead of 59% where one launch in 20 is 25% slower.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

# Of so many launches one is left out on either side.
_TRIMMED_OF = 7
# How many nights the prior of the variance between nights counts as: with 1% and 2% between
# nights two give the same rates within what 1000 simulations tell.
_PRIOR_NIGHTS = 4
# The median of so many steps is not that of a single change that lasted.
_MIN_STEPS = 3
# The median of the sizes of normal values, in standard deviations.
_MEDIAN_SIZE = 0.6745
# Tonight's launches are taken to vary as the kept ones do unless this F-test speaks against it.
_UNSTEADY_LEVEL = 0.05
_MIN_NIGHTS_FOR_MEDIAN = 4
# Of eight independent pairs 3% correlate by more than this.
_TOGETHER = 0.7
# What rounding alone makes of equal logarithms.
_MIN_VARIANCE = 1e-18
# Two wild launches leave limits that no number holds.
_LARGEST_LOG = math.log(sys.float_info.max)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NightValue:
    """What the `n` launches of one night say of a metric.

    `typical` is the exponential of the trimmed mean of their logarithms; `sd` the deviation of
    one launch, as a share, such that `sd / sqrt(n)` is that of `typical`; None for one launch.
    """

    typical: float
    sd: float | None
    n: int

    @property
    def freedom(self) -> int:
        """Degrees of freedom of `sd`."""
        return max(self.n - 2 * _left_out(self.n) - 1, 0)

    @property
    def variance(self) -> float:
        """Variance of one launch's logarithm, 0 where it is not known."""
        return self.sd**2 if self.sd is not None else 0.0


def night_value(values: Sequence[float]) -> NightValue | None:
    """The value of a night from one positive value a launch; None without any.

    Raises:
        ValueError: a value is not a positive, finite number.
    """
    data = np.asarray(values, dtype=float)
    if not np.all(np.isfinite(data)) or np.any(data <= 0):
        raise ValueError(f"a night needs positive values, not {list(values)}")
    return _value(np.log(data)) if data.size else None


def _value(logs: Floats) -> NightValue:
    mean, variance = _typical(logs)
    sd = None if variance is None else math.sqrt(variance * logs.size)
    return NightValue(math.exp(mean), sd, int(logs.size))


@dataclass(frozen=True, slots=True)
class Change:
    """The logarithm of a ratio, with its standard error and degrees of freedom."""

    log_ratio: float
    error: float
    freedom: float

    def chance_below(self) -> float:
        """The chance of a ratio as small as this one, or smaller, where nothing changed."""
        from scipy.special import stdtr  # noqa: PLC0415 - heavy

        return float(stdtr(self.freedom, self.log_ratio / self.error))

    def chance_above(self) -> float:
        """The chance of a ratio as large as this one, or larger, where nothing changed."""
        return self.inverse().chance_below()

    def inverse(self) -> Change:
        """The change of the reciprocal."""
        return Change(-self.log_ratio, self.error, self.freedom)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Limits of the ratio, the largest number that there is where it is beyond all numbers."""
        from scipy.special import stdtrit  # noqa: PLC0415 - heavy

        half = float(stdtrit(self.freedom, 0.5 + confidence / 2)) * self.error
        low, high = (min(self.log_ratio + side, _LARGEST_LOG) for side in (-half, half))
        return math.exp(low), math.exp(high)


def change_of_night(
    levels: Sequence[Sequence[NightValue]],
    now: NightValue,
    night_sd: float,
    steps: Sequence[float] = (),
) -> Change | None:
    """Tonight over the kept nights; None where no night has two launches.

    Args:
        levels: kept nights in groups that lie around one value each; tonight is compared with
            the last group, how nights vary is learnt from all of them.
        now: tonight.
        night_sd: the deviation between nights, as a share, that the prior expects.
        steps: logarithms of the ratio of each kept night to the one before it, levels or not:
            what changes its level every few nights has none.
    """
    kept = levels[-1]
    nights = [night for level in levels for night in level]
    if not sum(night.freedom for night in nights) + now.freedom:
        return None
    is_other = is_unsteady(nights, now)
    within = _pooled(nights if is_other else [*nights, now])
    between = _learnt_variance(levels, steps, within[0], night_sd) * (1 + 1 / len(kept))
    parts = _parts(kept, within, now, is_unsteady=is_other)
    parts.append((between, _PRIOR_NIGHTS + sum(len(level) - 1 for level in levels)))
    error = max(sum(part for part, _ in parts), _MIN_VARIANCE)
    uncertain = sum(part**2 / degrees for part, degrees in parts)
    typical = np.mean([math.log(night.typical) for night in kept])
    return Change(
        log_ratio=math.log(now.typical) - float(typical),
        error=math.sqrt(error),
        # Without any variance there is nothing to be unsure of.
        freedom=error**2 / uncertain if uncertain else math.inf,
    )


def is_unsteady(nights: Sequence[NightValue], now: NightValue) -> bool:
    """Whether tonight's launches vary more than those of the kept nights."""
    from scipy.special import fdtrc  # noqa: PLC0415 - heavy

    usual, freedom = _pooled(nights)
    if not freedom or not now.freedom:
        return False
    times = now.variance / max(usual, _MIN_VARIANCE)
    return float(fdtrc(now.freedom, freedom, times)) < _UNSTEADY_LEVEL


def change_in_pairs(before: Sequence[float], now: Sequence[float]) -> Change | None:
    """The change over pairs of launches made side by side; None below three pairs.

    Where both of a pair are slow together, as under drift, bursts and busy neighbours, their
    differences tell most. Otherwise two independent samples tell as much, and their noise
    is known from twice as many launches.

    Raises:
        ValueError: the values do not pair up.
    """
    logs = np.log([before, now])
    count = logs.shape[1]
    if count < 3:  # noqa: PLR2004 - as few as an interval can be made of
        return None
    if np.all(np.ptp(logs, axis=1)) and np.corrcoef(logs)[0, 1] < _TOGETHER:
        return change_of_night([[_value(logs[0])]], _value(logs[1]), 0.0)
    mean, variance = _typical(logs[1] - logs[0])
    freedom = count - 2 * _left_out(count) - 1
    return Change(mean, math.sqrt(max(variance or 0.0, _MIN_VARIANCE)), freedom)


def hochberg(chances: Sequence[float]) -> list[float]:
    """Chances of one family corrected so that any false claim has the chance it says.

    Hochberg's step-up (1988) never corrects by more than Holm, and where all members change
    alike not at all; it holds for members that are independent or rise together (Sarkar 1998),
    as figures of the same launches do.
    """
    corrected = [0.0] * len(chances)
    running = 1.0
    order = sorted(range(len(chances)), key=lambda place: -chances[place])
    for factor, place in enumerate(order, start=1):
        running = min(running, factor * chances[place])
        corrected[place] = running
    return corrected


def _left_out(count: int) -> int:
    return count // _TRIMMED_OF


def _typical(logs: Floats) -> tuple[float, float | None]:
    """The trimmed mean and the variance of that mean, None for a single value."""
    count, cut = logs.size, _left_out(logs.size)
    ordered = np.sort(logs)
    mean = float(np.mean(ordered[cut : count - cut]))
    kept = count - 2 * cut
    if kept < 2:  # noqa: PLR2004 - one value has no spread
        return mean, None
    winsorized = np.clip(ordered, ordered[cut], ordered[count - 1 - cut])
    squares = float(np.sum((winsorized - winsorized.mean()) ** 2))
    return mean, squares / (kept * (kept - 1))


def _pooled(nights: Sequence[NightValue]) -> tuple[float, float]:
    """Variance of a launch over several nights, and its degrees of freedom.

    From four nights on it is their median, each over what the median of its chi-square is, so
    that a disturbed night does not hide a change in all later ones; a median knows as much as
    a mean of 2 / pi as many values.
    """
    from scipy.special import chdtri  # noqa: PLC0415 - heavy

    known = [night for night in nights if night.freedom]
    freedom = sum(night.freedom for night in known)
    if len(known) < _MIN_NIGHTS_FOR_MEDIAN:
        return sum(n.freedom * n.variance for n in known) / max(freedom, 1), freedom
    usual = [n.variance * n.freedom / float(chdtri(n.freedom, 0.5)) for n in known]
    return median(usual), freedom * 2 / math.pi


def _parts(
    kept: Sequence[NightValue], within: tuple[float, float], now: NightValue, *, is_unsteady: bool
) -> list[tuple[float, float]]:
    """The variance that launches give a change, with its freedom: of one pool, or of two."""
    variance, freedom = within
    of_kept = sum(variance / night.n for night in kept) / len(kept) ** 2
    if is_unsteady:
        return [(now.variance / now.n, now.freedom), (of_kept, freedom)]
    return [(variance / now.n + of_kept, freedom)]


def _learnt_variance(
    levels: Sequence[Sequence[NightValue]],
    steps: Sequence[float],
    within: float,
    night_sd: float,
) -> float:
    """Variance between nights, beyond what the variance of launches explains.

    Within levels it is best told, but not where chance or a restless machine made levels of
    what is noise. The median step from night to night knows no levels, and a few changes that
    lasted leave it as it is.
    """
    seen, nights = 0.0, 0
    for level in levels:
        logs = np.log([night.typical for night in level])
        explained = float(np.mean([within / night.n for night in level]))
        seen += float(np.sum((logs - logs.mean()) ** 2)) - (len(level) - 1) * explained
        nights += len(level) - 1
    learnt = _moderated(seen, nights, night_sd)
    if len(steps) < _MIN_STEPS:
        return learnt
    explained = float(np.mean([within / night.n for level in levels for night in level]))
    step = median(map(abs, steps)) / _MEDIAN_SIZE
    return max(learnt, _moderated(len(steps) * (step**2 / 2 - explained), len(steps), night_sd))


def _moderated(squares: float, freedom: int, night_sd: float) -> float:
    return (_PRIOR_NIGHTS * night_sd**2 + max(squares, 0.0)) / (_PRIOR_NIGHTS + freedom)
