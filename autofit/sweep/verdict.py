"""What an entry of a sweep is called, metric by metric, against its kept nights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

RegressionKind = Literal[
    "slower",
    "more_memory",
    "boundary_moved",
    "new_failure",
    "output_changed",
    "preset_rejected",
]
ImprovementKind = Literal["faster", "less_memory", "boundary_gained", "recovered"]
# undecided: a change that matters is neither shown nor ruled out; unknown: nothing to compare.
Finding = Literal[RegressionKind, ImprovementKind, "same", "undecided", "unknown", "failing"]
# new: nothing is kept to compare with; failing: as it was when it was kept.
Verdict = Literal["regression", "improvement", "same", "undecided", "new", "failing", "skipped"]
Against = Literal["baseline", "reference"]
REGRESSIONS: tuple[RegressionKind, ...] = get_args(RegressionKind)
IMPROVEMENTS: tuple[ImprovementKind, ...] = get_args(ImprovementKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricVerdict:
    """One metric of an entry.

    `metric` is `pp_per_s`, `tg_per_s`, `ttft_s`, `request_s`, `load_s`, `peak_mib DEVICE`,
    `boundary LAYOUT CACHE_TYPE`, `outcome` or `answers`. Of speed, `ratio` is how many times
    as fast it is now (0.94: 6% slower), with its interval; of memory, how many times as much
    is needed now. `p` is the chance of such a change where there is none, corrected for the
    entry's other metrics. `threshold` is the smallest change that counts: a share of the
    time, MiB or layers. `against` says what `kept` is: the kept nights, or the reference
    measured tonight. `nights` are the values of the kept nights, the oldest first, then
    tonight's. None is what is not known.
    """

    metric: str
    verdict: Finding
    words: str
    kept: float | None = None
    now: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    threshold: float | None = None
    against: Against = "baseline"
    nights: tuple[float, ...] = ()

    @property
    def is_regression(self) -> bool:
        """Whether it is worse than what was kept."""
        return self.verdict in REGRESSIONS

    @property
    def is_improvement(self) -> bool:
        """Whether it is better than what was kept."""
        return self.verdict in IMPROVEMENTS

    def to_dict(self) -> dict[str, Any]:
        """The verdict as JSON data."""
        return {**asdict(self), "nights": list(self.nights)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryVerdict:
    """An entry against what is kept of it.

    `date` is that of the night, ISO 8601 in UTC; `seconds` the time the entry took;
    `reproduce` a shell command.
    """

    name: str
    verdict: Verdict
    date: str
    metrics: tuple[MetricVerdict, ...] = ()
    environment_changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reproduce: str = ""
    seconds: float = 0.0

    @property
    def regressions(self) -> tuple[MetricVerdict, ...]:
        """The metrics that are worse than what was kept."""
        return tuple(one for one in self.metrics if one.is_regression)

    @property
    def improvements(self) -> tuple[MetricVerdict, ...]:
        """The metrics that are better than what was kept."""
        return tuple(one for one in self.metrics if one.is_improvement)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as an entry of the document of `sweep`."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "kinds": list(dict.fromkeys(one.verdict for one in self.regressions)),
            "metrics": [one.to_dict() for one in self.metrics],
            "environment_changes": list(self.environment_changes),
            "notes": list(self.notes),
            "reproduce": self.reproduce,
            "date": self.date,
            "seconds": round(self.seconds, 1),
        }


def overall(metrics: Sequence[MetricVerdict]) -> Verdict:
    """One word for all metrics of an entry: the worst of them, then the best."""
    if any(one.is_regression for one in metrics):
        return "regression"
    if any(one.verdict == "failing" for one in metrics):
        return "failing"
    if any(one.is_improvement for one in metrics):
        return "improvement"
    if any(one.verdict == "undecided" for one in metrics):
        return "undecided"
    return "same"
