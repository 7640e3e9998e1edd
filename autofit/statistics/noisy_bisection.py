"""The search for the first changed item of a series, by observations that can be wrong.

The items are in order, the first has not changed and the last has. Every observation of an item
is a log likelihood ratio: how much more likely it is if the item has changed than if it has not.
By Bayes' rule all observations together give the probability that an item is the first changed
one, so that one wrong observation is outvoted by later ones. The next item to observe is the one
that halves the probability (Horstein, "Sequential transmission using noiseless feedback", IEEE
Transactions on Information Theory 9 (1963) 136-143).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy import special, stats

# The degrees of freedom of the likelihood: heavy tails, so that one outlier decides nothing.
_DEGREES = 4


@dataclass(frozen=True, slots=True)
class Suspects:
    """A run of items that contains the first changed one, with this probability.

    Only `last` can be observed, and `before`, the nearest observable item in front of the run.
    """

    before: int
    first: int
    last: int
    probability: float


@dataclass(slots=True)
class NoisyBisection:
    """The observations of a series of `count` items. Items in `skipped` cannot be observed."""

    count: int
    skipped: set[int] = field(default_factory=set)
    _evidence: dict[int, float] = field(default_factory=dict)

    def observe(self, item: int, log_ratio: float) -> None:
        """Add the log likelihood ratio of an observation: positive if the item seems changed."""
        self._evidence[item] = self._evidence.get(item, 0.0) + log_ratio

    def probabilities(self) -> np.ndarray:
        """Return the probability of each item to be the first changed one, of shape (count,)."""
        evidence = np.zeros(self.count)
        for item, log_ratio in self._evidence.items():
            evidence[item] = log_ratio
        # If item k is the first changed one, all items from k on have changed.
        log_likelihood = np.cumsum(evidence[::-1])[::-1]
        log_likelihood[0] = -np.inf
        result: np.ndarray = special.softmax(log_likelihood)
        return result

    def next_item(self) -> int | None:
        """Return the item that splits the probability into halves, or None without one."""
        open_items = [k for k in range(1, self.count - 1) if k not in self.skipped]
        if not open_items:
            return None
        changed = np.cumsum(self.probabilities())
        middle = (self.count - 1) / 2
        return min(open_items, key=lambda k: (abs(changed[k] - 0.5), abs(k - middle)))

    def suspects(self) -> Suspects:
        """Return the most probable run of items that observations cannot divide further."""
        probabilities = self.probabilities()
        seen = [k for k in range(self.count) if k not in self.skipped or k in (0, self.count - 1)]
        runs = [
            Suspects(before, before + 1, last, float(probabilities[before + 1 : last + 1].sum()))
            for before, last in pairwise(seen)
        ]
        return max(runs, key=lambda run: run.probability)


def level_log_ratio(value: float, low: float, high: float, sd: float) -> float:
    """Return the log likelihood ratio of a value for the level `high` against the level `low`.

    The likelihood is Student's t with few degrees of freedom around each level. `sd` is the
    standard deviation of a value.
    """
    density = stats.t(_DEGREES, scale=sd)
    return float(density.logpdf(value - high) - density.logpdf(value - low))
