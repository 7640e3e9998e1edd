"""Requirements that a winner must satisfy, such as `tg>=20`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from autofit.errors import UsageError
from autofit.trial.measurement import Measurement
from autofit.trial.metric import METRICS, Metric, median_metric
from autofit.trial.workload import Workload

_TEXT = re.compile(r"^\s*(\w+)\s*(>=|<=)\s*(\d+(?:\.\d+)?)\s*$")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement: a limit on a metric, in tokens per second or in seconds."""

    metric: Metric
    comparison: str
    value: float

    def shortfall(self, measurement: Measurement | None, workload: Workload) -> float:
        """Return the share by which a metric misses the limit: 0 if satisfied, 1 if unknown."""
        measured = median_metric(measurement, workload, self.metric)
        if measured is None:
            return 1.0
        missing = self.value - measured if self.comparison == ">=" else measured - self.value
        return max(0.0, missing / self.value) if self.value else float(missing > 0)

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{self.value:.12g}"


def parse_requirement(text: str) -> Requirement:
    """Parse a requirement from the command line.

    Raises:
        UsageError: the text has another form.
    """
    found = _TEXT.match(text)
    metric = next((m for m in METRICS if found and m == found[1]), None)
    if found is None or metric is None:
        raise UsageError(
            f"--require '{text}' must be 'metric>=number' or 'metric<=number'",
            f"metrics: {', '.join(METRICS)}; for example --require 'tg>=20'",
        )
    return Requirement(metric, found[2], float(found[3]))


def are_kept(
    requirements: Sequence[Requirement], measurements: Sequence[Measurement], workload: Workload
) -> bool:
    """Return whether the median launch satisfies all requirements, or False without a launch."""
    missed = [total_shortfall(requirements, measured, workload) for measured in measurements]
    return bool(missed) and median(missed) == 0


def total_shortfall(
    requirements: Sequence[Requirement], measurement: Measurement | None, workload: Workload
) -> float:
    """Return the sum of all shortfalls. It is 0 if every requirement is satisfied."""
    return sum(requirement.shortfall(measurement, workload) for requirement in requirements)
