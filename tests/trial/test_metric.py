"""Metrics of a measurement over the requests of a workload."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.trial.measurement import Measurement, Sample
from autofit.trial.metric import (
    METRICS,
    cost,
    fastest_repeats,
    is_higher_better,
    median_metric,
    metric_values,
    pooled_values,
    time_ratio,
)
from autofit.trial.workload import Request, Workload

TWO = Workload("two", 4096, 1, (Request(100, 11, weight=3.0), Request(1000, 101)))
ONE = Workload("one", 4096, 1, (Request(100, 11),))


def _sample(request=0, prompt_s=1.0, predicted_s=1.0, **fields):
    prompt, predicted = (100, 11) if request == 0 else (1000, 101)
    return Sample(prompt, prompt_s, prompt_s, predicted, predicted_s, request=request, **fields)


def test_seconds_are_the_weighted_mean_of_the_requests():
    """A repeat takes the mean of its requests' seconds by their weights."""
    measured = Measurement((_sample(0, 1.0, 1.0), _sample(1, 4.0, 6.0)))

    assert metric_values(measured, TWO, "request_s") == pytest.approx([(3 * 2.0 + 10.0) / 4])
    assert metric_values(measured, TWO, "ttft") == pytest.approx([(3 * 1.0 + 4.0) / 4])


def test_rates_are_a_harmonic_mean():
    """Seconds per token add up, so the slow request is not hidden by the fast one."""
    measured = Measurement((_sample(0, 1.0, 1.0), _sample(1, 4.0, 10.0)))

    assert metric_values(measured, TWO, "pp") == pytest.approx([4 / (3 / 100 + 1 / 250)])
    assert metric_values(measured, TWO, "tg") == pytest.approx([10.0])


def test_fastest_repeats_keep_the_best_of_each_request():
    """Prompt and generation are judged apart; warm-ups and slower repeats do not count."""
    measured = Measurement((
        _sample(0, 0.1, 0.1, is_warmup=True),
        _sample(0, 2.0, 1.0), _sample(1, 4.0, 9.0),
        _sample(0, 1.0, 3.0), _sample(1, 5.0, 6.0),
    ))  # fmt: skip
    fastest = fastest_repeats(measured, TWO)

    assert metric_values(fastest, TWO, "request_s") == pytest.approx([(3 * 2.0 + 10.0) / 4])
    assert metric_values(fastest, TWO, "ttft") == pytest.approx([(3 * 1.0 + 4.0) / 4])
    assert fastest_repeats(fastest, TWO) == fastest
    assert fastest_repeats(Measurement(), TWO).samples == ()


def test_parallel_requests_are_one_repeat():
    """The first of several slots waits for none: it is no faster repeat of the others."""
    both = replace(ONE, parallel=2)
    queued = (_sample(0, 3.0, 1.0), _sample(0, 1.0, 4.0))
    hindered = (_sample(0, 1.5, 2.0), _sample(0, 4.0, 4.0))
    fastest = fastest_repeats(Measurement((*hindered, *queued)), both)

    assert sorted(sample.ttft_s for sample in fastest.samples) == [1.0, 3.0]
    assert sorted(sample.predicted_s for sample in fastest.samples) == [1.0, 4.0]
    assert fastest_repeats(Measurement(queued[:1]), both).samples == queued[:1]


def test_one_value_per_repeat():
    """Each round over the requests is a value of its own; half a round is none."""
    measured = Measurement(
        tuple(_sample(request, 1.0 + order) for order, request in enumerate((0, 1, 0, 1, 0)))
    )

    assert len(metric_values(measured, TWO, "request_s")) == 2


def test_warm_ups_do_not_count():
    """A warm-up is kept in the measurement and left out of its metrics."""
    measured = Measurement((_sample(prompt_s=99.0, is_warmup=True), _sample(prompt_s=1.0)))

    assert metric_values(measured, ONE, "ttft") == [1.0]


def test_requests_of_another_workload_do_not_count():
    """A sample of a request the workload does not have is left out."""
    measured = Measurement((_sample(0), _sample(1)))

    assert metric_values(measured, ONE, "request_s") == [2.0]


def test_a_request_of_one_token_does_not_hide_the_generation_of_the_others():
    """A request that generates a single token has no rate; the others still have theirs."""
    workload = Workload("mixed", 4096, 1, (Request(100, 11), Request(1000, 1)))
    measured = Measurement((_sample(0, 1.0, 0.5), Sample(1000, 4.0, 4.0, 1, 0.0, request=1)))

    assert metric_values(measured, workload, "tg") == pytest.approx([20.0])
    assert metric_values(measured, workload, "pp") == pytest.approx([2 / (1 / 100 + 1 / 250)])


def test_a_workload_without_generation_has_no_rate_of_it():
    """If every request generates a single token the rate is not known."""
    workload = Workload("prefill", 4096, 1, (Request(1000, 1),))
    measured = Measurement((Sample(1000, 4.0, 4.0, 1, 0.0),))

    assert metric_values(measured, workload, "tg") == []
    assert median_metric(measured, workload, "tg") is None


def test_a_request_that_was_never_answered_leaves_no_value():
    """A workload answered in part is not measured."""
    assert metric_values(Measurement((_sample(0),)), TWO, "request_s") == []


def test_nothing_measured_is_none():
    """No measurement and no samples give None, not zero."""
    assert median_metric(None, ONE, "tg") is None
    assert median_metric(Measurement(), ONE, "tg") is None


def test_launches_are_pooled_by_their_medians():
    """One value per launch that measured something: launches vary."""
    launches = [
        Measurement(tuple(_sample(prompt_s=s) for s in (1.0, 2.0, 9.0))),
        Measurement(),
        Measurement((_sample(prompt_s=3.0),)),
    ]

    assert pooled_values(launches, ONE, "ttft") == [2.0, 3.0]


@given(
    st.sampled_from(METRICS),
    st.floats(0.01, 1e4),
    st.floats(0.01, 1e4),
)
def test_faster_is_above_one_for_every_metric(metric, one, other):
    """The ratio is above 1 exactly where the other costs less, whatever the unit."""
    ratio = time_ratio(one, other, metric)

    assert ratio == pytest.approx(cost(one, metric) / cost(other, metric))
    assert (ratio > 1) == ((other > one) == is_higher_better(metric) and other != one)
