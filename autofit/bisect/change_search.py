"""The search for changes in a series of builds, from values that vary between launches.

Only values of the same round, or of rounds close to it, are compared, so that a slow drift of the
machine does not matter. A value is additive: the logarithm of a speed, MiB of memory, or 1 for a
failure.

First both ends are compared, until it is clear whether they differ. Then each round launches one
build and one of the ends, good and bad in turns (`statistics.noisy_bisection` chooses the build).
At last the suspect and the build before it are launched in rounds of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, variance
from typing import Protocol

from autofit.statistics.estimate import center
from autofit.statistics.noisy_bisection import NoisyBisection, level_log_ratio
from autofit.statistics.stopping_rule import Decision, StoppingRule, decide

# The search among builds ends once one of them is the first changed with this probability.
_CONFIDENCE = 0.97
# The suspect and the build before it are launched in at most this many rounds.
_ROUNDS_OF_PROOF = 6
# A build is at a level of its own if it is this many standard errors from both known levels.
_LEVEL_ERRORS = 3.0
_LEVEL_LAUNCHES = 3
# Another change is searched if the found one leaves so much of the difference unexplained: this
# share of the smallest difference that counts, and this many standard errors.
_REST_SHARE = 0.7
_REST_ERRORS = 2.0
# Two differences have the first variance.
_FEWEST_DIFFERENCES = 2

Values = Mapping[int, float | None]


class Series(Protocol):
    """A series of builds that can be launched; a build is named by its index."""

    def measure(self, items: Sequence[int]) -> Values | None:
        """Launch builds once in one round and return their values, None for one that fails.

        Return None instead of values if no time is left for the round.
        """
        ...


@dataclass(frozen=True, slots=True)
class BuildChange:
    """A change in a series: `before` is the last build without it, `last` is one with it.

    Builds between the two could not be launched: any of them may be the first with the change.

    Attributes:
        probability: the probability that the change is here.
        decision: the verdict on the difference between both builds, in rounds of their own; None
            if there were none.
    """

    before: int
    last: int
    probability: float
    decision: Decision | None = None

    @property
    def first(self) -> int:
        """The first build that may have brought the change."""
        return self.before + 1

    @property
    def is_proven(self) -> bool:
        """True if rounds of both builds have shown the difference."""
        return self.decision is not None and self.decision.verdict in ("better", "worse")


@dataclass(slots=True)
class Ends:
    """The values of the first and the last build of a range, from all rounds with one of them.

    Attributes:
        floor: the least standard deviation of a launch.
        differences: last minus first of each round with both.
        middle: the value between both, as the latest rounds show it.
        middle_variance: the variance of `middle`.
    """

    floor: float
    differences: list[float] = field(default_factory=list)
    middle: float = 0.0
    middle_variance: float = math.inf
    _middles: list[float] = field(default_factory=list)

    @property
    def difference(self) -> float:
        """The difference between both builds."""
        return center(self.differences)

    @property
    def sd(self) -> float:
        """The standard deviation of one launch."""
        if len(self.differences) < _FEWEST_DIFFERENCES:
            return self.floor
        return max(self.floor, math.sqrt(variance(self.differences) / 2))

    def add_both(self, first: float, last: float) -> None:
        """Add a round of both builds."""
        self.differences.append(last - first)
        self._follow((first + last) / 2, launches=2)

    def add_first(self, value: float) -> None:
        """Add a round of the first build alone."""
        self._follow(value + self.difference / 2, launches=1)

    def add_last(self, value: float) -> None:
        """Add a round of the last build alone."""
        self._follow(value - self.difference / 2, launches=1)

    def _follow(self, middle: float, *, launches: int) -> None:
        """Follow the drift of the machine by the filter of a local level model.

        The drift is a random walk. Its variance is what the steps from round to round vary
        beyond the noise of launches.
        """
        self._middles.append(middle)
        noise = self.sd**2 / launches
        steps = [b - a for a, b in pairwise(self._middles)]
        drift = max(0.0, fmean(step**2 for step in steps) - 2 * noise) if steps else 0.0
        spread = self.middle_variance + drift
        gain = 1.0 if math.isinf(spread) else spread / (spread + noise)
        self.middle += gain * (middle - self.middle)
        self.middle_variance = noise * gain


@dataclass(slots=True)
class ChangeSearch:
    """A search for changes in a series.

    Attributes:
        rule: decides whether two builds differ.
        floor: the least standard deviation of a launch.
        skipped: the builds that cannot be launched.
        is_out_of_time: whether the budget ended before the search did.
    """

    series: Series
    rule: StoppingRule
    floor: float
    skipped: set[int] = field(default_factory=set)
    is_out_of_time: bool = False

    def find(self, first: int, last: int, ends: Ends | None = None) -> Iterator[BuildChange]:
        """Yield the changes between two builds; `ends` are their values if they are known.

        If the budget ends, the last change is only the most probable one.
        """
        known = ends or self._compare(first, last)
        if known is None:
            return
        rounds = _Rounds(self, first, last, known)
        middle = rounds.run()
        if middle is not None:
            yield from self.find(first, middle)
            yield from self.find(middle, last)
            return
        change = rounds.change
        yield change
        if rounds.leaves_rest(change):
            if change.before > first:
                yield from self.find(first, change.before)
            if change.last < last:
                yield from self.find(change.last, last)

    def measure(self, items: Sequence[int]) -> Values | None:
        """Launch builds in one round; return None if no time is left."""
        values = None if self.is_out_of_time else self.series.measure(items)
        self.is_out_of_time = values is None
        return values

    def _compare(self, first: int, last: int) -> Ends | None:
        """Launch two builds until it is clear whether they differ; return None if they do not."""
        ends = Ends(self.floor)
        while len(ends.differences) < self.rule.last_round:
            values = self.measure((first, last)) or {}
            low, high = values.get(first), values.get(last)
            if low is None or high is None:
                return None
            ends.add_both(low, high)
            decision = decide(ends.differences, self.rule)
            if decision.verdict != "undecided":
                return None if decision.verdict == "tie" else ends
        return None


@dataclass(slots=True)
class _Rounds:
    """The rounds of a range of builds, whose first and last build differ."""

    search: ChangeSearch
    first: int
    last: int
    ends: Ends
    bisection: NoisyBisection = field(init=False)
    _positions: dict[int, list[float]] = field(default_factory=dict)
    _steps: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    _is_first_next: bool = True

    def __post_init__(self) -> None:
        self.bisection = NoisyBisection(self.last - self.first + 1)
        self._steps[self.first, self.last] = self.ends.differences
        self._skip(self.search.skipped)

    @property
    def change(self) -> BuildChange:
        """The most probable place of a change, and the verdict on the builds around it."""
        run = self.bisection.suspects()
        before, last = self.first + run.before, self.first + run.last
        steps = self._steps.get((before, last))
        return BuildChange(
            before, last, run.probability, decide(steps, self._proof_rule) if steps else None
        )

    @property
    def _proof_rule(self) -> StoppingRule:
        rounds = min(_ROUNDS_OF_PROOF, self.search.rule.max_rounds)
        return replace(self.search.rule, max_rounds=rounds, comparisons=1)

    def run(self) -> int | None:
        """Launch rounds until the change is proven; return a build at a level of its own instead.

        Such a build shows that there are several changes, on both sides of it.
        """
        while True:
            change = self.change
            if change.probability < _CONFIDENCE:
                found = self._observe_one()
                if found is not None:
                    return found
            elif self._is_finished(change):
                return None
            else:
                self._observe_pair(change.before, change.last)
            if self.search.is_out_of_time:
                return None

    def leaves_rest(self, change: BuildChange) -> bool:
        """Return whether a change leaves a part of the difference unexplained."""
        steps = self._steps.get((change.before, change.last), ())
        if not steps or steps is self.ends.differences:
            return False
        rest = abs(self.ends.difference - center(steps))
        counts = 1 / len(steps) + 1 / len(self.ends.differences)
        error = self.ends.sd * math.sqrt(2 * counts)
        smallest = math.log1p(self.search.rule.min_effect)
        return rest > max(_REST_SHARE * smallest, _REST_ERRORS * error)

    def _is_finished(self, change: BuildChange) -> bool:
        steps = self._steps.get((change.before, change.last), ())
        return change.is_proven or len(steps) >= self._proof_rule.last_round

    def _observe_one(self) -> int | None:
        """Launch the build that divides the probability into halves.

        Return it if its values are at neither of the known levels.
        """
        chosen = self.bisection.next_item()
        if chosen is None:  # the rest cannot be launched: `change` has all suspects
            return None
        item = self.first + chosen
        end = self.first if self._is_first_next else self.last
        self._is_first_next = not self._is_first_next
        values = self._measure((item, end))
        if values is None:
            return None
        (self.ends.add_first if end == self.first else self.ends.add_last)(values[end])
        position = values[item] - self.ends.middle
        half = self.ends.difference / 2
        sd = math.sqrt(self.ends.sd**2 + self.ends.middle_variance)
        self.bisection.observe(chosen, level_log_ratio(position, -half, half, sd))
        seen = self._positions.setdefault(item, [])
        seen.append(position)
        return item if self._is_own_level(seen, half, sd) else None

    def _observe_pair(self, before: int, last: int) -> None:
        """Launch a suspect and the build before it."""
        values = self._measure((before, last))
        if values is None:
            return
        step = values[last] - values[before]
        self._steps.setdefault((before, last), []).append(step)
        sd = self.ends.sd * math.sqrt(2)
        log_ratio = level_log_ratio(step, 0.0, self.ends.difference, sd)
        # The step speaks for a change between the two, and against one anywhere else.
        self.bisection.observe(last - self.first, log_ratio)
        self.bisection.observe(before - self.first, -log_ratio)

    def _measure(self, items: tuple[int, int]) -> dict[int, float] | None:
        """Return the values of a round, or None if a build failed or no time is left."""
        values = self.search.measure(items)
        if values is None:
            return None
        self._skip(item for item in items if values[item] is None)
        known = {item: value for item, value in values.items() if value is not None}
        return known if len(known) == len(items) else None

    def _skip(self, items: Iterator[int] | set[int]) -> None:
        inner = {item for item in items if self.first < item < self.last}
        self.search.skipped |= inner
        self.bisection.skipped |= {item - self.first for item in inner}

    def _is_own_level(self, positions: Sequence[float], half: float, sd: float) -> bool:
        if len(positions) < _LEVEL_LAUNCHES:
            return False
        error = _LEVEL_ERRORS * sd / math.sqrt(len(positions))
        least = max(error, math.log1p(self.search.rule.min_effect))
        return all(abs(fmean(positions) - level) > least for level in (-half, half))
