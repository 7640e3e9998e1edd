"""The Pareto front of a tune, in prompt speed, generation speed and headroom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from autofit.session.ranking import SAME_HEADROOM_MIB, headroom_mib
from autofit.session.requirement import are_kept
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement
from autofit.trial.metric import Metric, pooled_values
from autofit.trial.trial import Trial


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A candidate as a point of the front, with the medians of its launches.

    `free_mib` maps each device and the host to its least free memory in any launch.
    `headroom_mib` is the least of the devices, or None without a counter. Proofs are left out,
    because they have other requests.
    """

    candidate: Candidate
    layout: str
    pp_per_s: float
    tg_per_s: float
    request_s: float
    free_mib: Mapping[str, float]
    headroom_mib: float | None
    launches: int

    def beats(self, other: FrontPoint) -> bool:
        """Return whether the other point is worse in some respect, and better in none."""
        mine, its = self._values(), other._values()
        return all(a >= b for a, b in zip(mine, its, strict=True)) and mine != its

    def _values(self) -> tuple[float, ...]:
        # Launches of the same candidate also differ by this much memory.
        steps = round(self.headroom_mib / SAME_HEADROOM_MIB) if self.headroom_mib else 0
        return (self.pp_per_s, self.tg_per_s, steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the point as `tune --json` prints it."""
        return {
            "params": dict(self.candidate.params),
            "layout": self.layout,
            "pp_per_s": self.pp_per_s,
            "tg_per_s": self.tg_per_s,
            "request_s": self.request_s,
            "free_mib": dict(self.free_mib),
            "launches": self.launches,
        }


def find_front(trials: Sequence[Trial], task: Task) -> list[FrontPoint]:
    """Return the unbeaten candidates that satisfy the requirements, the fastest prompts first."""
    by_candidate: dict[str, list[Trial]] = {}
    for trial in trials:
        if not trial.is_completed or trial.shows_fit_only:
            continue
        if trial.measurement is not None and trial.phase != "prove":
            by_candidate.setdefault(trial.candidate.key, []).append(trial)
    points = [
        point
        for launches in by_candidate.values()
        if (point := _point(launches, task)) is not None
    ]
    kept = [point for point in points if not any(other.beats(point) for other in points)]
    return sorted(kept, key=lambda point: -point.pp_per_s)


def _point(launches: Sequence[Trial], task: Task) -> FrontPoint | None:
    measured = [trial.measurement for trial in launches if trial.measurement is not None]
    if not are_kept(task.requirements, measured, task.workload):
        return None

    def middle(metric: Metric) -> float | None:
        values = pooled_values(measured, task.workload, metric)
        return median(values) if values else None

    pp, tg, request_s = middle("pp"), middle("tg"), middle("request_s")
    if pp is None or tg is None or request_s is None:
        return None
    return FrontPoint(
        launches[0].candidate,
        launches[0].layout,
        pp,
        tg,
        request_s,
        _least_free(measured),
        headroom_mib(launches),
        len(launches),
    )


def _least_free(measured: Sequence[Measurement]) -> dict[str, float]:
    found: dict[str, float] = {}
    for measurement in measured:
        for name, mib in measurement.free_mib.items():
            if mib is not None:
                found[name] = min(mib, found.get(name, mib))
    return found
