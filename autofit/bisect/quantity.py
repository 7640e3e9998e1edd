"""The quantities in which builds can differ, each as a value of a launch.

A value is additive, so that differences of launches can be averaged: the logarithm of a speed,
MiB in units of the smallest difference that counts, or 1 for a failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from autofit.quality.answer_check import judge_answers
from autofit.quality.prompt_set import Answers
from autofit.trial.device import HOST_NAME
from autofit.trial.metric import METRICS, Metric, is_higher_better, median_metric
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

QuantityName = Literal["request_s", "pp", "tg", "ttft", "load_s", "memory", "failure", "answers"]
SPEEDS: tuple[QuantityName, ...] = (*METRICS, "load_s")
# Launches of one build vary by at least this much: a share of the speed, or MiB.
_LEAST_SPEED_SD = 0.002
_LEAST_MEMORY_SD_MIB = 4.0
# A failure or a wrong answer that is seen by mistake counts as this deviation from 0 or 1.
_SIGN_SD = 0.25


@dataclass(frozen=True, slots=True)
class LaunchedBuild:
    """A launch of a build, with its answers if it was asked for them."""

    trial: Trial
    answers: Answers | None = None


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity in which builds differ.

    Attributes:
        value: returns the value of a launch, or None if the launch does not show it.
        floor: the least standard deviation of a launch.
        device: the device whose memory it is.
    """

    name: QuantityName
    value: Callable[[LaunchedBuild], float | None]
    floor: float
    device: str = ""

    @property
    def is_speed(self) -> bool:
        """True for a speed, whose value is a logarithm; a smaller one is worse."""
        return self.name in SPEEDS

    @property
    def is_sign(self) -> bool:
        """True for a failure or wrong answers, whose value is 0 or 1."""
        return self.name in ("failure", "answers")


def speed_quantity(name: QuantityName, workload: Workload) -> Quantity:
    """Return the quantity of a speed."""

    def value(launched: LaunchedBuild) -> float | None:
        measurement = launched.trial.measurement
        if not launched.trial.is_completed or measurement is None:
            return None
        if name == "load_s":
            return -math.log(measurement.load_s) if measurement.load_s else None
        metric: Metric = name  # type: ignore[assignment] # one of METRICS
        found = median_metric(measurement, workload, metric)
        if not found:
            return None
        return math.log(found) if is_higher_better(metric) else -math.log(found)

    return Quantity(name, value, _LEAST_SPEED_SD)


def memory_quantity(device: str, *, threshold_mib: float, min_effect: float) -> Quantity:
    """Return the quantity of a device's memory; `threshold_mib` MiB count as `min_effect`."""
    unit = math.log1p(min_effect) / threshold_mib

    def value(launched: LaunchedBuild) -> float | None:
        taken = taken_mib(launched.trial).get(device)
        return None if taken is None else taken * unit

    return Quantity("memory", value, _LEAST_MEMORY_SD_MIB * unit, device)


def failure_quantity(kind: str) -> Quantity:
    """Return the quantity of a failure: builds that fail otherwise do not count."""

    def value(launched: LaunchedBuild) -> float | None:
        if launched.trial.is_completed:
            return 0.0
        return 1.0 if launched.trial.outcome.kind == kind else None

    return Quantity("failure", value, _SIGN_SD)


def answers_quantity(reference: Answers, *, is_sparse: bool) -> Quantity:
    """Return the quantity of wrong answers, compared with those of a reference."""

    def value(launched: LaunchedBuild) -> float | None:
        check = judge_answers(
            reference,
            launched.answers,
            reference_name="good",
            may_differ=False,
            is_sparse=is_sparse,
        )
        return {"equal": 0.0, "rounding": 0.0, "different": 1.0}.get(check.verdict)

    return Quantity("answers", value, _SIGN_SD)


def taken_mib(trial: Trial) -> Mapping[str, float]:
    """Return the memory that a completed launch took on each device, without the host's."""
    if not trial.is_completed or trial.measurement is None:
        return {}
    taken = trial.measurement.taken_mib()
    return {name: mib for name, mib in taken.items() if name != HOST_NAME and mib is not None}
