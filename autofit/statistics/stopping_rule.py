"""The decision whether one contender is faster than another, after each added round.

The values are logarithms of the ratio of two contenders, one per round. The interval is a
repeated confidence interval (Jennison and Turnbull, Group Sequential Methods, 2000, ch. 9):
it is valid at all looks together, so the verdict may be read after every round, and the
rounds may stop for any reason.

The probability of a false claim, alpha, is spent over the rounds. The first part goes to an
exact group-sequential t-test, which shows a large gain in four rounds. Once there are enough
rounds for it, the rest goes to a sign-flip test, which is valid for any noise and keeps its
power under bursts (both in `sequential_tests`).

Alternatives tried, for a 5% gain at 3% noise within 12 rounds:

- a t-test at every round: 18% false claims;
- an anytime-valid t-test (Wang and Ramdas 2024): finds 68% of the gains;
- the group-sequential t-test alone: finds 93%, but 60% instead of 70% if one launch in 20 is
  25% slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from autofit.statistics import sequential_tests
from autofit.statistics.estimate import Estimate, center

MIN_ROUNDS = sequential_tests.FIRST_LOOK

Verdict = Literal["better", "worse", "tie", "undecided"]


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """The number of rounds, and the errors and effects that the verdict must respect.

    Attributes:
        max_rounds: the number of rounds that are planned.
        alpha: the probability that any claim of the whole family is false.
        min_effect: the smallest effect that matters to a user, as a share.
        comparisons: the size of the family; each comparison gets an equal part of alpha
            (Bonferroni).
        early_share: the share of alpha that is spent linearly over the first rounds.
        early_rounds: the number of these rounds, or None for all. A rule that expects a large
            effect spends more in few rounds.
        ended_at: the round after which the rounds ended early, for a budget or by choice. The
            last look then spends all that is left of alpha. That is valid if the ratios had no
            influence on the end (Lan and DeMets 1983).
    """

    max_rounds: int = 12
    alpha: float = 0.05
    min_effect: float = 0.03
    comparisons: int = 1
    early_share: float = 0.1
    early_rounds: int | None = None
    ended_at: int | None = None

    def __post_init__(self) -> None:
        if self.max_rounds < MIN_ROUNDS:
            raise ValueError(f"use at least {MIN_ROUNDS} rounds: fewer cannot decide anything")

    def alpha_spent(self, rounds: int) -> float:
        """Return the part of alpha that one comparison may have spent by a round.

        The early share is spent linearly, which shows a large gain early. The rest is kept for
        the last rounds, which need it for a gain of a few percent.
        """
        if self.ended_at is not None and rounds >= self.ended_at:
            return self.alpha / self.comparisons
        share = min(rounds / self.max_rounds, 1.0)
        early = min(rounds / (self.early_rounds or self.max_rounds), 1.0)
        late_share = 1.0 - self.early_share
        spent = self.early_share * early + late_share * share**6
        return self.alpha / self.comparisons * spent

    @property
    def last_round(self) -> int:
        """The last round that counts."""
        return self.max_rounds if self.ended_at is None else min(self.ended_at, self.max_rounds)

    @property
    def first_sign_flip_round(self) -> int:
        """The first round at which a sign-flip test is able to reject anything by itself."""
        for rounds in range(MIN_ROUNDS + 1, self.last_round + 1):
            patterns = (self.alpha_spent(rounds) - self.alpha_spent(rounds - 1)) * 2**rounds
            if patterns >= 2:  # noqa: PLR2004 - two-sided
                return rounds
        return self.last_round + 1


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on a ratio after some rounds.

    Attributes:
        verdict: whether the contender is faster.
        ratio: how many times as fast the contender is; its interval is valid at every look.
        decided_at: the number of rounds until the verdict, or None while it is undecided.
    """

    verdict: Verdict
    ratio: Estimate | None
    decided_at: int | None = None

    def mirrored(self) -> Decision:
        """Return the decision with the two contenders swapped."""
        verdict: Verdict = self.verdict
        if verdict in ("better", "worse"):
            verdict = "worse" if verdict == "better" else "better"
        return Decision(verdict, self.ratio and self.ratio.inverse(), self.decided_at)


def decide(log_ratios: Sequence[float], rule: StoppingRule) -> Decision:
    """Return the verdict on the logarithms of a ratio by round; above 0 the contender is faster.

    - tie: the interval lies within the smallest effect on both sides of 1.
    - better: it lies above 1, and a gain that matters is not ruled out.
    - worse: the same below 1.
    - undecided: more rounds are needed, or there were no more.

    Values beyond the rule's rounds do not count. A verdict does not change once it is reached.
    """
    return _decide(tuple(log_ratios[: rule.last_round]), rule)


@lru_cache(maxsize=1024)
def _decide(values: tuple[float, ...], rule: StoppingRule) -> Decision:
    if not values:
        return Decision("undecided", None)
    middle = center(values)
    count = len(values)
    if count < MIN_ROUNDS:
        return Decision("undecided", Estimate(math.exp(middle), None, None, count))
    low, high = _running_interval(values, rule)
    ratio = Estimate(math.exp(min(max(middle, low), high)), math.exp(low), math.exp(high), count)
    before = _decide(values[:-1], rule)
    if before.verdict != "undecided":
        return Decision(before.verdict, ratio, before.decided_at)
    verdict = _verdict(low, high, math.log1p(rule.min_effect))
    return Decision(verdict, ratio, None if verdict == "undecided" else count)


def _verdict(low: float, high: float, effect: float) -> Verdict:
    if -effect < low and high < effect:
        return "tie"
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "undecided"


def _running_interval(values: tuple[float, ...], rule: StoppingRule) -> tuple[float, float]:
    """Return the intersection of the intervals of all looks so far, which are valid together."""
    low, high = _look(values, rule)
    if len(values) > MIN_ROUNDS:
        low_before, high_before = _running_interval(values[:-1], rule)
        narrow = max(low, low_before), min(high, high_before)
        # They are disjoint only in the rare case that one of them is wrong.
        return narrow if narrow[0] <= narrow[1] else (low_before, high_before)
    return low, high


@lru_cache(maxsize=1024)
def _look(values: tuple[float, ...], rule: StoppingRule) -> tuple[float, float]:
    count = len(values)
    flip_from = rule.first_sign_flip_round
    if count < flip_from:
        looks = range(MIN_ROUNDS, min(flip_from, rule.last_round + 1))
        spent = tuple(rule.alpha_spent(look) for look in looks)
        critical = sequential_tests.t_critical_values(spent)
        return sequential_tests.t_interval(values, critical[count - MIN_ROUNDS])
    spent_by_t = rule.alpha_spent(flip_from - 1)
    spendable = {look: rule.alpha_spent(look) - spent_by_t for look in range(flip_from, count + 1)}
    return sequential_tests.sign_flip_interval(values, spendable, center(values))
