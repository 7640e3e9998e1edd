"""The first comparison of a bisection: the quantities in which the good and the bad build differ.

Both builds are launched in rounds. All quantities share one probability of error, so that the
more of them are compared, the clearer a difference must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import stdev

from autofit.bisect.build_series import BuildSeries
from autofit.bisect.change_search import Ends
from autofit.bisect.quantity import (
    SPEEDS,
    LaunchedBuild,
    Quantity,
    QuantityName,
    answers_quantity,
    failure_quantity,
    memory_quantity,
    speed_quantity,
    taken_mib,
)
from autofit.errors import AutofitError
from autofit.statistics.stopping_rule import Decision, StoppingRule, decide
from autofit.trial.outcome import describe_outcome

# A load time depends on what the host has cached, so it is compared only if it is asked for.
_USUAL = tuple(name for name in SPEEDS if name != "load_s")


@dataclass(frozen=True, slots=True)
class Difference:
    """A quantity with its values in the rounds of both builds, and the verdict on them."""

    quantity: Quantity
    ends: Ends
    decision: Decision

    @property
    def is_shown(self) -> bool:
        """True if the builds differ."""
        return self.decision.verdict in ("better", "worse")

    @property
    def is_worse(self) -> bool:
        """True if the bad build is slower, needs more memory, fails, or answers wrongly."""
        return self.decision.verdict == ("worse" if self.quantity.is_speed else "better")

    @property
    def clearness(self) -> float:
        """The difference in standard deviations of a round."""
        differences = self.ends.differences
        spread = max(stdev(differences), self.ends.floor)
        return abs(self.ends.difference) / spread


def compare_ends(
    series: BuildSeries,
    asked: QuantityName | None,
    rule: StoppingRule,
    *,
    threshold_mib: float,
) -> list[Difference]:
    """Launch the good and the bad build until a quantity differs, and return all quantities.

    With `asked` only that quantity is compared. The list begins with those that got worse, the
    clearest first.

    Raises:
        AutofitError: the good build fails.
        Interrupted: the user stopped the run.
    """
    good, bad = 0, len(series.builds) - 1
    rounds: list[tuple[LaunchedBuild, LaunchedBuild]] = []
    found: list[Difference] = []
    while len(rounds) < rule.last_round:
        is_asked = asked == "answers" or (asked is None and _have_other_answers(series, rounds))
        launched = series.launch((good, bad), asks=not rounds or is_asked)
        if launched is None:
            break
        pair = launched[good], launched[bad]
        if pair[0] is None or pair[1] is None:  # an end without a program raises an error
            break
        _require_good(series, pair[0], asked)
        rounds.append((pair[0], pair[1]))
        quantities = list(_quantities(series, rounds, asked, rule, threshold_mib))
        family = replace(rule, comparisons=max(1, len(quantities)))
        found = [_compare(quantity, rounds, family) for quantity in quantities]
        if any(one.is_shown for one in found) or (
            found and all(one.decision.verdict == "tie" for one in found)
        ):
            break
    return sorted(found, key=_rank)


def _have_other_answers(
    series: BuildSeries, rounds: Sequence[tuple[LaunchedBuild, LaunchedBuild]]
) -> bool:
    """Return whether the bad build's first answers are wrong, so that later rounds are needed."""
    if not rounds or rounds[0][0].answers is None:
        return False
    is_sparse = series.good_task.inventory.is_moe
    return answers_quantity(rounds[0][0].answers, is_sparse=is_sparse).value(rounds[0][1]) == 1.0


def _rank(difference: Difference) -> tuple[bool, bool, bool, float]:
    return (
        not difference.is_shown,
        not difference.is_worse,
        not difference.quantity.is_sign,
        -difference.clearness if len(difference.ends.differences) > 1 else 0.0,
    )


def _require_good(series: BuildSeries, good: LaunchedBuild, asked: QuantityName | None) -> None:
    if good.trial.is_completed or asked == "failure":
        return
    raise AutofitError(
        f"the good build {series.builds[0].name} fails: {describe_outcome(good.trial.outcome)}",
        "choose a build and a preset that run",
    )


def _quantities(
    series: BuildSeries,
    rounds: Sequence[tuple[LaunchedBuild, LaunchedBuild]],
    asked: QuantityName | None,
    rule: StoppingRule,
    threshold_mib: float,
) -> list[Quantity]:
    good, bad = rounds[0]
    failed = next((pair[1].trial for pair in rounds if not pair[1].trial.is_completed), None)
    if failed is not None and asked in (None, "failure"):
        return [failure_quantity(failed.outcome.kind)]
    workload = series.good_task.workload
    names = [asked] if asked in SPEEDS else [*_USUAL] if asked is None else []
    quantities = [speed_quantity(name, workload) for name in names]
    if asked in (None, "memory"):
        quantities += [
            memory_quantity(device, threshold_mib=threshold_mib, min_effect=rule.min_effect)
            for device in taken_mib(good.trial)
        ]
    if asked in (None, "answers") and good.answers is not None:
        is_sparse = series.good_task.inventory.is_moe
        quantities.append(answers_quantity(good.answers, is_sparse=is_sparse))
    if asked == "failure":
        quantities.append(failure_quantity(bad.trial.outcome.kind))
    return quantities


def _compare(
    quantity: Quantity,
    rounds: Sequence[tuple[LaunchedBuild, LaunchedBuild]],
    rule: StoppingRule,
) -> Difference:
    ends = Ends(quantity.floor)
    for good, bad in rounds:
        first, last = quantity.value(good), quantity.value(bad)
        if first is not None and last is not None:
            ends.add_both(first, last)
    return Difference(quantity, ends, decide(ends.differences, rule))
