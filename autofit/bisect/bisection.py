"""A bisection: the first comparison, the search among the builds, and `bisect --json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autofit.bisect.build_series import BuildSeries
from autofit.bisect.change_search import BuildChange, ChangeSearch
from autofit.bisect.first_comparison import Difference, compare_ends
from autofit.bisect.quantity import Quantity, QuantityName, taken_mib
from autofit.session.machine_conditions import describe_conditions
from autofit.statistics.estimate import estimate
from autofit.statistics.stopping_rule import Decision, StoppingRule
from autofit.text_format import as_fast, mib
from autofit.trial.measurement import extremes
from autofit.trial.metric import METRIC_KEYS, METRICS, median_metric
from autofit.trial.outcome import Completed, describe_outcome, outcome_to_dict
from autofit.trial.workload import Workload

QUANTITY_WORDS: Mapping[QuantityName, str] = {
    "request_s": "requests",
    "pp": "prompt processing",
    "tg": "generation",
    "ttft": "the first token",
    "load_s": "loading",
    "memory": "memory",
    "failure": "a failure",
    "answers": "other answers",
}
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

    `asked` is the quantity to search, or None for the one that got worse most clearly. The rule
    decides whether two builds differ. `threshold_mib` is the smallest difference of memory that
    counts.

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


def bisection_document(
    result: BisectionResult, series: BuildSeries, workload: Workload
) -> dict[str, Any]:
    """Return the document that `bisect --json` prints; `words` are its sentences for people."""
    searched = result.searched
    trials = [one.trial for launches in series.launches.values() for one in launches]
    return {
        "verdict": result.verdict,
        "quantity": searched.quantity.name if searched else None,
        "device": searched.quantity.device if searched else "",
        "good": series.builds[0].name,
        "bad": series.builds[-1].name,
        "differences": [_difference(one, series) for one in result.differences],
        "changes": [_change(change, result, series) for change in result.changes],
        "builds": [_build(item, series, workload) for item in range(len(series.builds))],
        "skipped": [series.builds[item].name for item in sorted(series.faults)],
        "is_out_of_time": result.is_out_of_time,
        "because": "bisected",
        "words": [*_messages(result, series)],
        "workload": workload.name,
        "rounds": series.rounds,
        "launches": len(trials),
        "conditions": describe_conditions(trials),
    }


def _difference(difference: Difference, series: BuildSeries) -> dict[str, Any]:
    quantity = difference.quantity
    last = len(series.builds) - 1
    return {
        "quantity": quantity.name,
        "device": quantity.device,
        "is_shown": difference.is_shown,
        "is_worse": difference.is_shown and difference.is_worse,
        **_amount(quantity, difference.decision, (0, last), series),
    }


def _change(change: BuildChange, result: BisectionResult, series: BuildSeries) -> dict[str, Any]:
    searched = result.searched
    assert searched is not None  # noqa: S101 - without a difference there is no change
    names = [build.name for build in series.builds]
    pair = (change.before, change.last)
    return {
        "first_bad": names[change.last],
        "last_good": names[change.before],
        "suspects": names[change.first : change.last + 1],
        "probability": round(change.probability, 4),
        "is_proven": change.is_proven,
        **_amount(searched.quantity, change.decision, pair, series),
    }


def _amount(
    quantity: Quantity, decision: Decision | None, pair: tuple[int, int], series: BuildSeries
) -> dict[str, Any]:
    """Return the size of a difference: a ratio of speeds, MiB, or the failure."""
    amount: dict[str, Any] = {"ratio": None, "mib": None, "outcome": None}
    if quantity.is_speed and decision is not None:
        amount["ratio"] = decision.ratio.to_dict() if decision.ratio else None
    if quantity.name == "memory":
        taken = [_memory(item, quantity.device, series) for item in pair]
        if None not in taken:
            amount["mib"] = {"before": taken[0], "after": taken[1]}
    if quantity.name == "failure":
        failed = series.first_failure(pair[1])
        amount["outcome"] = outcome_to_dict(failed.outcome) if failed else None
    return amount


def _messages(result: BisectionResult, series: BuildSeries) -> Iterator[str]:
    """Yield a sentence for each change, then the doubts, then other differences."""
    searched = result.searched
    good, bad = series.builds[0].name, series.builds[-1].name
    if searched is None:
        if result.verdict == "same":
            yield f"{good} and {bad} do not differ"
        else:
            yield f"not decided whether {good} and {bad} differ"
        return
    for change in result.changes:
        yield _describe_change(change, searched.quantity, series)
    if not result.changes:
        yield f"not decided which build changed {QUANTITY_WORDS[searched.quantity.name]}"
    for change in result.changes:
        names = [build.name for build in series.builds[change.first : change.last + 1]]
        if len(names) > 1:
            yield f"the change may also be in a skipped build: {', '.join(names[:-1])}"
        if not change.is_proven:
            yield (
                f"not proven: the change is at {names[-1]} with a probability of "
                f"{change.probability:.0%}"
            )
    others = [one for one in result.differences[1:] if one.is_shown]
    if others:
        named = ", ".join(QUANTITY_WORDS[one.quantity.name] for one in others)
        yield f"{good} and {bad} also differ in {named} (--quantity searches another)"


def _describe_change(change: BuildChange, quantity: Quantity, series: BuildSeries) -> str:
    name, before = series.builds[change.last].name, series.builds[change.before].name
    amount = _amount(quantity, change.decision, (change.before, change.last), series)
    if quantity.is_speed:
        ratio = amount["ratio"]
        words = QUANTITY_WORDS[quantity.name]
        if ratio is None:
            return f"{name} changed {words}"
        return f"{name} made {words} {as_fast(ratio['median'], ratio['low'], ratio['high'])}"
    if quantity.name == "memory":
        used = amount["mib"] or {}
        return (
            f"{name} uses {mib(used.get('after'))} of {quantity.device}; before, {before} used "
            f"{mib(used.get('before'))}"
        )
    if quantity.name == "failure":
        failed = series.first_failure(change.last)
        reason = f": {describe_outcome(failed.outcome)}" if failed else ""
        return f"{name} is the first build that fails{reason}"
    return f"{name} is the first build with other answers"


def _memory(item: int, device: str, series: BuildSeries) -> float | None:
    trials = [one.trial for one in series.launches.get(item, ())]
    known = [mib for trial in trials if (mib := taken_mib(trial).get(device)) is not None]
    return round(max(known), 1) if known else None


def _build(item: int, series: BuildSeries, workload: Workload) -> dict[str, Any]:
    trials = [one.trial for one in series.launches.get(item, ())]
    measured = [trial.measurement for trial in trials if isinstance(trial.outcome, Completed)]
    estimates = {}
    for metric in METRICS:
        values = [median_metric(one, workload, metric) for one in measured]
        found = estimate([value for value in values if value])
        estimates[METRIC_KEYS[metric]] = found.to_dict() if found else None
    failed = series.first_failure(item)
    shown = failed or (trials[-1] if trials else None)
    return {
        "name": series.builds[item].name,
        "launches": len(trials),
        "fault": series.faults.get(item, ""),
        "outcome": outcome_to_dict(shown.outcome) if shown else None,
        "estimates": estimates if measured else {},
        "peak_mib": extremes([one.peak_mib for one in measured if one], max),
    }
