"""The best candidate of a tune that has no winner, computed from the launches in its study.

A stop, a crash or a used up budget can end a tune before its rounds or its proof. The candidate
is then not confirmed or not proven, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from autofit.session.requirement import are_kept, parse_requirement
from autofit.statistics.estimate import Estimate, estimate
from autofit.statistics.stopping_rule import MIN_ROUNDS, StoppingRule, decide
from autofit.study.study_folder import Study
from autofit.trial.measurement import Measurement
from autofit.trial.metric import (
    METRIC_KEYS,
    METRICS,
    Metric,
    cost,
    median_metric,
    pooled_values,
    time_ratio,
)
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSoFar:
    """The best candidate so far.

    Attributes:
        trial: its latest launch that measured speeds.
        baseline: the launch of the baseline, which may have failed.
        is_baseline: whether the baseline itself is the best.
        gain: its speedup over the baseline: by rounds, or without any (`n` is 0) by the medians
            of single launches; None for the baseline itself and if the baseline failed.
        is_confirmed: whether the rounds decided about it.
        proof: the launch in which it ran at full context, or None.
        estimates, baseline_estimates: the estimate of each metric by its key.
    """

    trial: Trial
    baseline: Trial
    is_baseline: bool
    gain: Estimate | None
    is_confirmed: bool
    proof: Trial | None
    estimates: Mapping[str, Any]
    baseline_estimates: Mapping[str, Any]

    @property
    def is_proven(self) -> bool:
        """True if it ran at full context."""
        return self.proof is not None

    @property
    def measurement(self) -> Measurement | None:
        """The memory at full context if that is known, or else of its latest launch."""
        return (self.proof or self.trial).measurement

    def to_dict(self) -> dict[str, Any]:
        """Return the candidate as JSON data."""
        measured = self.measurement
        return {
            "trial": self.trial.number,
            "params": dict(self.trial.candidate.params),
            "layout": self.trial.layout,
            "is_baseline": self.is_baseline,
            "gain": self.gain.to_dict() if self.gain else None,
            "confirmed": self.is_confirmed,
            "proven": self.is_proven,
            "estimates": dict(self.estimates),
            "baseline_estimates": dict(self.baseline_estimates),
            "peak_mib": dict(measured.peak_mib) if measured else {},
            "taken_mib": measured.taken_mib() if measured else {},
            "free_mib": dict(measured.free_mib) if measured else {},
        }


def find_best_so_far(study: Study) -> BestSoFar | None:
    """Return the best candidate of a tune without a winner.

    It is None if the study has a winner or a result without one, such as that of a probe, is not
    a tune, or has no launch that measured speeds and may be recommended.
    """
    result, trials = study.result, study.trials()
    if result is not None and result.get("winner", True):
        return None
    baseline = next((trial for trial in trials if trial.purpose.role == "baseline"), None)
    if baseline is None:
        return None
    workload = study.header.workload
    metric: Metric = study.header.objective  # type: ignore[assignment]
    measured = _measured_candidates(trials, workload, metric)
    texts = study.header.options.get("requirements", ())
    kept = {
        key: own
        for key, own in measured.items()
        if are_kept([*map(parse_requirement, texts)], _measurements(own), workload)
    }
    best = _fastest(kept or measured, workload, metric)
    if not best:
        return None
    candidate = best[-1].candidate
    own = measured.get(baseline.candidate.key, [])
    gain, is_confirmed = _compare(best, own, measured, workload, metric)
    return BestSoFar(
        trial=best[-1],
        baseline=baseline,
        is_baseline=candidate == baseline.candidate,
        gain=gain,
        is_confirmed=is_confirmed,
        proof=next(
            (t for t in trials if t.purpose.role == "proof" and t.candidate == candidate), None
        ),
        estimates=metric_estimates(_measurements(best), workload),
        baseline_estimates=metric_estimates(_measurements(own), workload),
    )


def metric_estimates(measurements: Sequence[Measurement], workload: Workload) -> dict[str, Any]:
    """Return the estimate of each metric that was measured, as JSON data by its key."""
    found = {
        METRIC_KEYS[metric]: estimate(pooled_values(measurements, workload, metric))
        for metric in METRICS
    }
    return {name: value.to_dict() for name, value in found.items() if value is not None}


def _measured_candidates(
    trials: Sequence[Trial], workload: Workload, metric: Metric
) -> dict[str, list[Trial]]:
    """Return the launches with speeds of each candidate that never failed, by its key.

    Only launches of the rounds count for a candidate that has some, as in a finished tune.
    """
    failed = {trial.candidate.key for trial in trials if not trial.is_completed}
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        key = trial.candidate.key
        has_speed = median_metric(trial.measurement, workload, metric) is not None
        if key not in failed and has_speed and trial.phase != "prove" and not trial.shows_fit_only:
            found.setdefault(key, []).append(trial)
    rounds = {key: [t for t in own if t.purpose.round is not None] for key, own in found.items()}
    return {key: rounds[key] or own for key, own in found.items()}


def _fastest(
    candidates: Mapping[str, list[Trial]], workload: Workload, metric: Metric
) -> list[Trial]:
    """Return the launches of the fastest candidate, among those in the rounds if there are any."""
    raced = [own for own in candidates.values() if own[0].purpose.round is not None]

    def usual_cost(own: Sequence[Trial]) -> float:
        values = (median_metric(trial.measurement, workload, metric) for trial in own)
        return median(cost(value, metric) for value in values if value)

    return min(raced or candidates.values(), key=usual_cost, default=[])


def _compare(
    best: Sequence[Trial],
    baseline: Sequence[Trial],
    candidates: Mapping[str, list[Trial]],
    workload: Workload,
    metric: Metric,
) -> tuple[Estimate | None, bool]:
    """Return the speedup over the baseline, and whether the rounds decided about it."""
    if not baseline or best[0].candidate == baseline[0].candidate:
        return None, False

    def values(trials: Sequence[Trial]) -> dict[int | None, float]:
        found = {t.purpose.round: median_metric(t.measurement, workload, metric) for t in trials}
        return {number: value for number, value in found.items() if value}

    own, other = values(best), values(baseline)
    paired = sorted(number for number in own.keys() & other.keys() if number is not None)
    if not paired:
        ratio = time_ratio(median(other.values()), median(own.values()), metric)
        return Estimate(ratio, None, None, 0), False
    rivals = sum(trials[0].purpose.round is not None for trials in candidates.values()) - 1
    # A stop or a crash does not depend on the ratios, so the last look may spend all of alpha.
    ended_at = len(paired) if len(paired) >= MIN_ROUNDS else None
    decision = decide(
        [math.log(time_ratio(other[number], own[number], metric)) for number in paired],
        StoppingRule(comparisons=max(rivals, 1), ended_at=ended_at),
    )
    return decision.ratio, decision.verdict in ("better", "tie")


def _measurements(trials: Sequence[Trial]) -> list[Measurement]:
    return [trial.measurement for trial in trials if trial.measurement is not None]
