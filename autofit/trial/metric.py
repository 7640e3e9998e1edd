"""Metrics of a measurement, and the objective of a workload.

A metric is a list of values, one per repeat, so that statistics are computed when read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from autofit.trial.measurement import Measurement, Sample
from autofit.trial.workload import Request, Workload

Metric = Literal["request_s", "pp", "tg", "ttft"]
METRICS: tuple[Metric, ...] = ("request_s", "pp", "tg", "ttft")
# The names of metrics in documents, with their units.
METRIC_KEYS: dict[Metric, str] = {
    "pp": "pp_per_s",
    "tg": "tg_per_s",
    "ttft": "ttft_s",
    "request_s": "request_s",
}


def is_higher_better(metric: Metric) -> bool:
    """Return whether a larger value of the metric is better."""
    return metric in ("pp", "tg")


def _value(sample: Sample, metric: Metric, request: Request) -> float | None:
    if metric == "pp":
        return sample.pp_per_s
    if metric == "tg":
        return sample.tg_per_s
    if metric == "ttft" or request.predicted_tokens <= 1:
        return sample.ttft_s
    # A generation shorter than the workload's gives the rate, from which the time is computed.
    rate = sample.tg_per_s
    if rate is None:
        return None
    return sample.ttft_s + (request.predicted_tokens - 1) / rate


def metric_values(measurement: Measurement, workload: Workload, metric: Metric) -> list[float]:
    """Return one value of the metric for each complete repeat of the workload's requests.

    It is the weighted mean over the requests of a repeat (for rates the weighted harmonic mean,
    so that seconds add up). Warm-ups do not count.
    """
    # A request of a single generated token has no rate of generation.
    counted = {
        index: request.weight
        for index, request in enumerate(workload.requests)
        if metric != "tg" or request.predicted_tokens > 1
    }
    by_request: dict[int, list[float]] = {index: [] for index in counted}
    for sample in measurement.samples:
        if sample.is_warmup or sample.request not in by_request:
            continue
        value = _value(sample, metric, workload.requests[sample.request])
        if value is not None:
            by_request[sample.request].append(value)
    weights = list(counted.values())
    total = sum(weights)
    repeats = zip(*by_request.values(), strict=False)
    if is_higher_better(metric):
        return [
            total / sum(w / v for w, v in zip(weights, values, strict=True)) for values in repeats
        ]
    return [sum(w * v for w, v in zip(weights, values, strict=True)) / total for values in repeats]


def median_metric(
    measurement: Measurement | None, workload: Workload, metric: Metric
) -> float | None:
    """Return the median over repeats, or None if nothing was measured."""
    values = metric_values(measurement, workload, metric) if measurement else []
    return median(values) if values else None


def fastest_repeats(measurement: Measurement, workload: Workload) -> Measurement:
    """Return the measurement with one repeat: the fastest prompt and generation of each request.

    Other programs can only slow a launch down, so the fastest repeat says most about the
    settings. On a shared H200 machine three launches of one candidate took 2.70, 3.72 and 3.70 s
    by medians of two repeats, and 2.58, 2.92 and 3.02 s by the fastest. Requests that are sent
    together count as one repeat, because the first of them waits for no other. Warm-ups do not
    count.
    """
    by_request: dict[int, list[Sample]] = {}
    for sample in measurement.samples:
        if not sample.is_warmup:
            by_request.setdefault(sample.request, []).append(sample)
    fastest = (_fastest(own, workload.parallel) for own in by_request.values())
    return replace(measurement, samples=tuple(sample for repeat in fastest for sample in repeat))


def _fastest(samples: Sequence[Sample], parallel: int) -> list[Sample]:
    """Return one repeat with the shortest prompts and the fastest generation of all repeats."""
    whole = len(samples) - len(samples) % parallel or len(samples)
    repeats = [
        sorted(samples[start : start + parallel], key=lambda sample: sample.ttft_s)
        for start in range(0, whole, parallel)
    ]
    prompts = min(repeats, key=lambda repeat: sum(sample.ttft_s for sample in repeat))
    generations = max(repeats, key=_generation_per_s)
    return [
        replace(generation, prompt_s=prompt.prompt_s, ttft_s=prompt.ttft_s)
        for prompt, generation in zip(prompts, generations, strict=True)
    ]


def _generation_per_s(repeat: Sequence[Sample]) -> float:
    return sum(sample.tg_per_s or 0.0 for sample in repeat)


def time_ratio(baseline: float, other: float, metric: Metric) -> float:
    """Return the speedup of `other` over `baseline`: 1.25 is 25% faster."""
    return other / baseline if is_higher_better(metric) else baseline / other


def cost(value: float, metric: Metric) -> float:
    """Return the metric as a quantity to minimise: seconds, or seconds per token."""
    return 1.0 / value if is_higher_better(metric) else value


def pooled_values(
    measurements: Sequence[Measurement], workload: Workload, metric: Metric
) -> list[float]:
    """Return the median of each launch, because launches vary more than their repeats."""
    medians = (median_metric(m, workload, metric) for m in measurements)
    return [value for value in medians if value is not None]
