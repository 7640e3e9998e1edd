"""The verdict of a comparison, in words and as the document that `compare --json` prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from autofit.compare.compare_presets import SIDES, ComparisonResult, SideName
from autofit.session.machine_load import host_report
from autofit.statistics.estimate import estimate
from autofit.statistics.stopping_rule import MIN_ROUNDS, StoppingRule, Verdict, decide
from autofit.trial.measurement import Sample, extremes
from autofit.trial.metric import METRIC_KEYS, METRICS, Metric, median_metric, time_ratio
from autofit.trial.outcome import Completed, outcome_to_dict
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# speed: both ran and answered alike; failure, answers: one did not, whatever its speed.
Because = Literal["speed", "failure", "answers"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What B is against A, and what that rests on."""

    verdict: Verdict
    because: Because


def judge(compared: ComparisonResult) -> Judgement:
    """B against A: whoever fails is worse; B is, too, where it answers otherwise than it may.

    Answers may differ where KV types or models do: then only speed counts, and the words tell
    of the score.
    """
    a_fails, b_fails = (compared.failed(name) is not None for name in SIDES)
    if a_fails or b_fails:
        both: Verdict = "undecided"
        return Judgement(
            both if a_fails == b_fails else "better" if a_fails else "worse", "failure"
        )
    if compared.answers.verdict == "different":
        return Judgement("worse", "answers")
    return Judgement(_speed(compared), "speed")


def _speed(compared: ComparisonResult) -> Verdict:
    if compared.confirmation is None:
        return "undecided"
    decision = compared.confirmation.standing("B").against_baseline
    return decision.verdict if decision else "undecided"


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure of a launch by the key it has in the document."""

    key: str
    metric: Metric
    value: Callable[[Trial], float | None]


def comparison_document(
    compared: ComparisonResult,
    workload: Workload,
    metric: Metric,
    min_effect: float,
    about: Mapping[SideName, Mapping[str, Any]],
) -> dict[str, Any]:
    """The comparison as JSON data; `about` has what is known of each side beforehand.

    Ratios are how many times faster B is than A, whichever way a figure counts; their
    intervals hold after every round, each by itself.
    """
    judgement = judge(compared)
    confirmation = compared.confirmation
    rule = confirmation.rule if confirmation else StoppingRule(min_effect=min_effect)
    figures = list(_figures(workload))
    ratios = {figure.key: _ratio(compared, figure, rule) for figure in figures}
    return {
        "verdict": judgement.verdict,
        "because": judgement.because,
        "speed": _speed(compared),
        "objective": metric,
        "ratio": ratios.get(METRIC_KEYS[metric]),
        "ratios": ratios,
        **{
            name.lower(): {**about[name], **_side(compared.trials[name], figures)}
            for name in SIDES
        },
        "answers": compared.answers.to_dict(),
        "equality": compared.answers.to_dict()["equality"],
        "quality": compared.answers.to_dict()["quality"],
        "workload": workload.name,
        "rounds": confirmation.rounds if confirmation else 1,
        "max_rounds": compared.max_rounds,
        "min_effect": rule.min_effect,
        "ended": confirmation.ended if confirmation else "failed",
        "conditions": host_report([t for trials in compared.trials.values() for t in trials]),
        "launches": sum(map(len, compared.trials.values())) + len(compared.scoring),
        "words": [
            *_verdict_words(compared, judgement, metric, ratios),
            *compared.answers.messages,
        ],
    }


def _figures(workload: Workload) -> Iterator[_Figure]:
    def metric_of(metric: Metric) -> Callable[[Trial], float | None]:
        return lambda trial: median_metric(trial.measurement, workload, metric)

    for metric in METRICS:
        yield _Figure(METRIC_KEYS[metric], metric, metric_of(metric))
    for key in ("first_request", "second_request"):
        yield _Figure(f"{key}_pp_per_s", "pp", _request_value(key, lambda s: s.pp_per_s))
        yield _Figure(f"{key}_ttft_s", "ttft", _request_value(key, lambda s: s.ttft_s))


def _request_value(
    which: str, value: Callable[[Sample], float | None]
) -> Callable[[Trial], float | None]:
    """A value of the first request of a launch, or of the second one like it."""

    def read(trial: Trial) -> float | None:
        samples = trial.measurement.samples if trial.measurement else ()
        first = [sample for sample in samples if sample.is_warmup]
        again = [s for s in samples if not s.is_warmup and first and s.request == first[0].request]
        chosen = first if which == "first_request" else again[: len(first)]
        told = [found for sample in chosen if (found := value(sample)) is not None]
        return median(told) if told else None

    return read


def _ratio(
    compared: ComparisonResult, figure: _Figure, rule: StoppingRule
) -> dict[str, Any] | None:
    """How many times faster B is, over the rounds in which both have the figure."""
    logs = []
    for a, b in zip(*(compared.trials[name] for name in SIDES), strict=False):
        ours, theirs = figure.value(a), figure.value(b)
        if a.is_completed and b.is_completed and ours and theirs:
            logs.append(math.log(time_ratio(ours, theirs, figure.metric)))
    decision = decide(logs, rule)
    return decision.ratio.to_dict() if decision.ratio else None


def _side(trials: Sequence[Trial], figures: Sequence[_Figure]) -> dict[str, Any]:
    """What a side's launches measured; the outcome is that of the first that failed."""
    failed = next((trial for trial in trials if not trial.is_completed), None)
    told = {figure.key: _estimate(trials, figure.value) for figure in figures}
    keys = set(METRIC_KEYS.values())
    measured = [trial.measurement for trial in trials if trial.measurement]
    return {
        "argv": list(trials[0].argv) if trials else [],
        "env": dict(trials[0].env) if trials else {},
        "outcome": outcome_to_dict(failed.outcome if failed else Completed()),
        "estimates": {key: value for key, value in told.items() if key in keys and value},
        **{
            request: {
                key.removeprefix(f"{request}_"): value
                for key, value in told.items()
                if key.startswith(request)
            }
            for request in ("first_request", "second_request")
        },
        "load_s": _estimate(trials, lambda t: t.measurement.load_s if t.measurement else None),
        "peak_mib": extremes([m.peak_mib for m in measured], max),
        "free_mib": extremes([m.free_mib for m in measured], min),
        "trials": [trial.number for trial in trials],
    }


def _estimate(
    trials: Sequence[Trial], value: Callable[[Trial], float | None]
) -> dict[str, Any] | None:
    values = [told for trial in trials if trial.is_completed and (told := value(trial))]
    found = estimate(values)
    return found.to_dict() if found else None


def _verdict_words(
    compared: ComparisonResult,
    judgement: Judgement,
    metric: Metric,
    ratios: Mapping[str, Mapping[str, Any] | None],
) -> Iterator[str]:
    yield _headline(compared, judgement, ratios.get(METRIC_KEYS[metric]))
    for name in SIDES:
        failed = compared.failed(name)
        if failed is not None:
            outcome = failed.outcome
            yield f"{name} failed ({outcome.kind.replace('_', ' ')}): {outcome.evidence}"
    if judgement.because == "answers":
        yield f"by speed alone B is {_speed(compared)}"


def _headline(
    compared: ComparisonResult, judgement: Judgement, ratio: Mapping[str, Any] | None
) -> str:
    if judgement.because == "failure":
        who = [name for name in SIDES if compared.failed(name) is not None]
        told = "neither of the two runs" if len(who) > 1 else f"{who[0]} does not run"
        return f"{judgement.verdict}: {told}"
    if judgement.because == "answers":
        return "worse: B does not answer as A does, and nothing that differs may change answers"
    interval = ""
    if ratio and ratio["low"] is not None:
        interval = f" ({ratio['low']:.3g} to {ratio['high']:.3g})"
    times = (
        f"B has {ratio['median']:.3g} times the speed of A{interval}" if ratio else "no figures"
    )
    if judgement.verdict == "tie":
        return f"tie: {times}"
    if judgement.verdict == "undecided":
        rounds = compared.confirmation.rounds if compared.confirmation else 0
        more = "more rounds might tell"
        if rounds < MIN_ROUNDS:
            more = f"fewer than {MIN_ROUNDS} rounds decide nothing"
        return f"undecided: {times}; {more}"
    return f"{judgement.verdict}: {times}"
