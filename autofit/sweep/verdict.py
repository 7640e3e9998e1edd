"""Verdicts on the entries of a sweep: their kinds, the thresholds, and the sweep's document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from autofit.trial.metric import METRIC_KEYS, METRICS

RegressionKind = Literal[
    "slower",
    "more_memory",
    "boundary_moved",
    "new_failure",
    "output_changed",
    "preset_rejected",
]
ImprovementKind = Literal["faster", "less_memory", "boundary_gained", "recovered"]
# undecided: a change that counts is neither shown nor ruled out. unknown: there is nothing to
# compare with. failing: the entry failed in the baseline, too.
Finding = Literal[RegressionKind, ImprovementKind, "same", "undecided", "unknown", "failing"]
# new: the entry is not in the baseline.
Verdict = Literal["regression", "improvement", "same", "undecided", "new", "failing", "skipped"]
Against = Literal["baseline", "reference"]
REGRESSIONS: tuple[RegressionKind, ...] = get_args(RegressionKind)
IMPROVEMENTS: tuple[ImprovementKind, ...] = get_args(ImprovementKind)


class Thresholds(BaseModel):
    """The smallest changes that count: percent, and MiB of memory."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    request_s: float = Field(default=3, gt=0, le=1000)
    """Percent of the seconds per request."""
    pp: float = Field(default=3, gt=0, le=1000)
    """Percent of the prompt tokens per second."""
    tg: float = Field(default=3, gt=0, le=1000)
    """Percent of the generated tokens per second."""
    ttft: float = Field(default=3, gt=0, le=1000)
    """Percent of the seconds to the first token."""
    load_s: float | None = Field(default=None, gt=0, le=10000)
    """Percent of the seconds to load the model, which depend on what the host has cached."""
    memory_mib: float = Field(default=128, gt=0)
    """MiB of a device's memory at the peak."""

    @property
    def speeds(self) -> dict[str, float]:
        """The speeds that are judged, each with the smallest share of change that counts."""
        percents = {METRIC_KEYS[metric]: getattr(self, metric) for metric in METRICS}
        percents["load_s"] = self.load_s
        return {key: percent / 100 for key, percent in percents.items() if percent is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricVerdict:
    """The verdict on one metric of an entry. A value that is unknown is None.

    Attributes:
        metric: `pp_per_s`, `tg_per_s`, `ttft_s`, `request_s`, `load_s`, `peak_mib DEVICE`,
            `boundary LAYOUT CACHE_TYPE`, `outcome` or `answers`.
        message: a sentence for users.
        kept: the value of the baseline, or tonight's value of the reference.
        now: tonight's value.
        ratio: for speeds, how many times as fast it is (0.94 is 6% slower); for memory, how
            many times as much is needed.
        low, high: the 95% interval of `ratio`.
        p: the probability of such a change by chance, corrected for the entry's other metrics.
        threshold: the smallest change that counts: a share of the time, MiB or layers.
        against: the origin of `kept`.
        nights: the values of the baseline's nights, the oldest first, then tonight's.
    """

    metric: str
    verdict: Finding
    message: str
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
        """True if the value is worse than in the baseline."""
        return self.verdict in REGRESSIONS

    @property
    def is_improvement(self) -> bool:
        """True if the value is better than in the baseline."""
        return self.verdict in IMPROVEMENTS

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON data."""
        return {"words" if key == "message" else key: one for key, one in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryVerdict:
    """The verdict on an entry against its baseline.

    Attributes:
        date: the date of the night, ISO 8601 in UTC.
        builds: the version texts of the baseline's build and tonight's; empty if unknown.
        reproduce: a shell command that measures the entry again.
        seconds: the time that the entry took.
    """

    name: str
    verdict: Verdict
    date: str
    metrics: tuple[MetricVerdict, ...] = ()
    environment_changes: tuple[str, ...] = ()
    builds: tuple[str, str] = ("", "")
    notes: tuple[str, ...] = ()
    reproduce: str = ""
    seconds: float = 0.0

    @property
    def regressions(self) -> tuple[MetricVerdict, ...]:
        """The metrics that are worse than in the baseline."""
        return tuple(one for one in self.metrics if one.is_regression)

    @property
    def improvements(self) -> tuple[MetricVerdict, ...]:
        """The metrics that are better than in the baseline."""
        return tuple(one for one in self.metrics if one.is_improvement)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as an entry of the document of `sweep`."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "kinds": list(dict.fromkeys(one.verdict for one in self.regressions)),
            "metrics": [one.to_dict() for one in self.metrics],
            "environment_changes": list(self.environment_changes),
            "builds": list(self.builds),
            "notes": list(self.notes),
            "reproduce": self.reproduce,
            "date": self.date,
            "seconds": round(self.seconds, 1),
        }


def overall_verdict(metrics: Sequence[MetricVerdict]) -> Verdict:
    """Return one verdict for all metrics of an entry: the worst, or without a loss the best."""
    if any(one.is_regression for one in metrics):
        return "regression"
    if any(one.verdict == "failing" for one in metrics):
        return "failing"
    if any(one.is_improvement for one in metrics):
        return "improvement"
    if any(one.verdict == "undecided" for one in metrics):
        return "undecided"
    return "same"


def sweep_document(verdicts: Sequence[EntryVerdict]) -> dict[str, Any]:
    """Return the document that `sweep --json` prints. It lists names of entries in their order.

    An entry can have both regressions and improvements.
    """
    return {
        "entries": [one.to_dict() for one in verdicts],
        "regressions": [one.name for one in verdicts if one.verdict == "regression"],
        "improvements": [one.name for one in verdicts if one.improvements],
        "skipped": [one.name for one in verdicts if one.verdict == "skipped"],
    }
