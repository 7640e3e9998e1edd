"""The verdict of a comparison, and the document that `compare --json` prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from autofit.compare.comparison import SIDES, ComparisonResult, SideName
from autofit.session.machine_conditions import describe_conditions
from autofit.statistics.estimate import Estimate, estimate
from autofit.statistics.stopping_rule import MIN_ROUNDS, Verdict, decide
from autofit.text_format import as_fast
from autofit.trial.measurement import Sample, extremes
from autofit.trial.metric import METRIC_KEYS, METRICS, Metric, median_metric, time_ratio
from autofit.trial.outcome import Completed, outcome_to_dict
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# speed: both sides ran, and their answers are acceptable. failure, answers: a side failed, or its
# answers are wrong, whatever its speed.
Because = Literal["speed", "failure", "answers"]
_REQUESTS = ("first_request", "second_request")


@dataclass(frozen=True, slots=True)
class ComparisonVerdict:
    """The verdict on B, and its reason."""

    verdict: Verdict
    because: Because


@dataclass(frozen=True, slots=True)
class _Figure:
    """A measured figure of a launch, by its key in the document."""

    key: str
    metric: Metric
    value: Callable[[Trial], float | None]


def judge_comparison(result: ComparisonResult) -> ComparisonVerdict:
    """Return the verdict on B: a side that fails is worse, and so is B with wrong answers.

    Answers may differ if KV types or models do. Then only the speed counts.
    """
    a_fails, b_fails = (result.first_failure(name) is not None for name in SIDES)
    if a_fails and b_fails:
        return ComparisonVerdict("undecided", "failure")
    if a_fails or b_fails:
        return ComparisonVerdict("better" if a_fails else "worse", "failure")
    if result.answers.verdict == "different":
        return ComparisonVerdict("worse", "answers")
    return ComparisonVerdict(_speed_verdict(result), "speed")


def comparison_document(
    result: ComparisonResult,
    workload: Workload,
    metric: Metric,
    facts: Mapping[SideName, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the comparison as JSON data; `facts` are the other keys of each side.

    A ratio says how many times as fast B is, for rates and for seconds. Each interval is valid
    after every round, but not together with the others.
    """
    verdict, ranking = judge_comparison(result), result.ranking
    figures = list(_figures(workload))
    ratios = {figure.key: _ratio(result, figure) for figure in figures}
    ratio = ratios[METRIC_KEYS[metric]]
    answers = result.answers.to_dict()
    trials = {name: result.trials(name) for name in SIDES}
    return {
        "verdict": verdict.verdict,
        "because": verdict.because,
        "speed": _speed_verdict(result),
        "objective": metric,
        "ratio": ratio.to_dict() if ratio else None,
        "ratios": {key: one.to_dict() if one else None for key, one in ratios.items()},
        **{name.lower(): {**facts[name], **_side(trials[name], figures)} for name in SIDES},
        "answers": answers,
        "equality": answers["equality"],
        "quality": answers["quality"],
        "workload": workload.name,
        "rounds": ranking.rounds,
        "max_rounds": ranking.rule.last_round,
        "min_effect": ranking.rule.min_effect,
        "ended": ranking.ended,
        "conditions": describe_conditions([trial for side in trials.values() for trial in side]),
        "launches": sum(map(len, trials.values())) + len(result.scoring),
        "words": [*_messages(result, verdict, ratio), *result.answers.messages],
    }


def _speed_verdict(result: ComparisonResult) -> Verdict:
    decision = result.ranking.standing("B").against_baseline
    return decision.verdict if decision else "undecided"


def _figures(workload: Workload) -> Iterator[_Figure]:
    def read_metric(metric: Metric) -> Callable[[Trial], float | None]:
        return lambda trial: median_metric(trial.measurement, workload, metric)

    for metric in METRICS:
        yield _Figure(METRIC_KEYS[metric], metric, read_metric(metric))
    for key in _REQUESTS:
        yield _Figure(f"{key}_pp_per_s", "pp", _read_request(key, lambda s: s.pp_per_s))
        yield _Figure(f"{key}_ttft_s", "ttft", _read_request(key, lambda s: s.ttft_s))


def _read_request(
    which: str, value: Callable[[Sample], float | None]
) -> Callable[[Trial], float | None]:
    """Return a function that reads a value of a launch's first request, or of its second."""

    def read(trial: Trial) -> float | None:
        samples = trial.measurement.samples if trial.measurement else ()
        first = [sample for sample in samples if sample.is_warmup]
        again = [s for s in samples if not s.is_warmup and first and s.request == first[0].request]
        chosen = first if which == "first_request" else again[: len(first)]
        values = [found for sample in chosen if (found := value(sample)) is not None]
        return median(values) if values else None

    return read


def _ratio(result: ComparisonResult, figure: _Figure) -> Estimate | None:
    """Return B's speed divided by A's, from the rounds in which both have the figure."""
    logs = []
    for a, b in zip(*(result.trials(name) for name in SIDES), strict=False):
        ours, theirs = figure.value(a), figure.value(b)
        if a.is_completed and b.is_completed and ours and theirs:
            logs.append(math.log(time_ratio(ours, theirs, figure.metric)))
    return decide(logs, result.ranking.rule).ratio


def _side(trials: Sequence[Trial], figures: Sequence[_Figure]) -> dict[str, Any]:
    """Return a side's measurements; its outcome is that of its first failed launch, if any."""
    failed = next((trial for trial in trials if not trial.is_completed), None)
    found = {figure.key: _estimate(trials, figure.value) for figure in figures}
    measured = [trial.measurement for trial in trials if trial.measurement]
    return {
        "argv": list(trials[0].argv) if trials else [],
        "env": dict(trials[0].env) if trials else {},
        "outcome": outcome_to_dict(failed.outcome if failed else Completed()),
        "estimates": {key: found[key] for key in METRIC_KEYS.values() if found[key]},
        **{
            request: {
                key.removeprefix(f"{request}_"): value
                for key, value in found.items()
                if key.startswith(request)
            }
            for request in _REQUESTS
        },
        "load_s": _estimate(trials, lambda t: t.measurement.load_s if t.measurement else None),
        "peak_mib": extremes([m.peak_mib for m in measured], max),
        "free_mib": extremes([m.free_mib for m in measured], min),
        "trials": [trial.number for trial in trials],
    }


def _estimate(
    trials: Sequence[Trial], value: Callable[[Trial], float | None]
) -> dict[str, Any] | None:
    values = [one for trial in trials if trial.is_completed and (one := value(trial))]
    found = estimate(values)
    return found.to_dict() if found else None


def _messages(
    result: ComparisonResult, verdict: ComparisonVerdict, ratio: Estimate | None
) -> Iterator[str]:
    yield _headline(result, verdict, ratio)
    for name in SIDES:
        failed = result.first_failure(name)
        if failed is not None:
            outcome = failed.outcome
            yield f"{name} failed ({outcome.kind.replace('_', ' ')}): {outcome.evidence}"
    if verdict.because == "answers":
        yield f"by speed alone B is {_speed_verdict(result)}"


def _headline(result: ComparisonResult, verdict: ComparisonVerdict, ratio: Estimate | None) -> str:
    if verdict.because == "failure":
        failed = [name for name in SIDES if result.first_failure(name) is not None]
        subject = "neither A nor B runs" if len(failed) > 1 else f"{failed[0]} does not run"
        return f"{verdict.verdict}: {subject}"
    if verdict.because == "answers":
        return "worse: B's answers differ from A's, but their settings should not change answers"
    speed = "no speeds were measured"
    if ratio:
        speed = f"B is {as_fast(ratio.median, ratio.low, ratio.high, other='A')}"
    if verdict.verdict == "undecided":
        rounds = result.ranking.rounds
        if rounds < MIN_ROUNDS:
            return f"undecided after {rounds} of at least {MIN_ROUNDS} rounds: {speed}"
        return f"undecided after {rounds} rounds: {speed}"
    return f"{verdict.verdict}: {speed}"
