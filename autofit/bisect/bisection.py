"""A bisection: the first comparison of good and bad, then the search among the builds between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autofit.bisect.build_series import BuildSeries
from autofit.bisect.change_search import BuildChange, ChangeSearch
from autofit.bisect.first_comparison import Difference, compare_ends
from autofit.bisect.quantity import QuantityName
from autofit.statistics.stopping_rule import StoppingRule

# found: every change is proven. undecided: the budget ended, or a change is not proven.
# same: good and bad do not differ.
BisectionVerdict = Literal["found", "undecided", "same"]


@dataclass(frozen=True, slots=True)
class BisectionResult:
    """The result of a bisection.

    Attributes:
        differences: the quantities of the first comparison; the first of them was searched.
        changes: the changes in the order of the builds.
        is_out_of_time: whether the budget ended before the search did.
    """

    differences: tuple[Difference, ...]
    changes: tuple[BuildChange, ...]
    is_out_of_time: bool

    @property
    def searched(self) -> Difference | None:
        """The quantity that was searched, or None if good and bad do not differ."""
        first = self.differences[0] if self.differences else None
        return first if first is not None and first.is_shown else None

    @property
    def verdict(self) -> BisectionVerdict:
        """The verdict on the whole bisection."""
        if self.searched is None:
            is_same = all(one.decision.verdict == "tie" for one in self.differences)
            return "same" if is_same or not self.is_out_of_time else "undecided"
        is_proven = bool(self.changes) and all(change.is_proven for change in self.changes)
        return "found" if is_proven and not self.is_out_of_time else "undecided"


def bisect(
    series: BuildSeries,
    asked: QuantityName | None,
    rule: StoppingRule,
    *,
    threshold_mib: float,
) -> BisectionResult:
    """Find the builds of a series that changed something.

    Args:
        series: the builds; the first is the good one, the last the bad one.
        asked: the quantity to search, or None for the one that got worse most clearly.
        rule: decides whether two builds differ.
        threshold_mib: the smallest difference of memory that counts.

    Raises:
        AutofitError: the good build fails, or one of both cannot be prepared.
        Interrupted: the user stopped the run.
    """
    differences = compare_ends(series, asked, rule, threshold_mib=threshold_mib)
    result = BisectionResult(tuple(differences), (), series.is_out_of_time)
    searched = result.searched
    if searched is None:
        return result
    series.quantity = searched.quantity
    search = ChangeSearch(series, rule, searched.quantity.floor)
    found = list(search.find(0, len(series.builds) - 1, searched.ends))
    changes = sorted(found, key=lambda change: change.last)
    return BisectionResult(tuple(differences), tuple(changes), search.is_out_of_time)
