"""Cliffs and unsteady candidates are found among a study's launches."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from fakes.machine import Device, Host, Machine, Quirks
from fakes.random_machine import Case
from fakes.synthetic_model import ModelShape, build_model
from trial.purpose_sample import purpose_of

from autofit.trial.measurement import Conditions, Measurement, Sample
from autofit.trial.outcome import Completed, OutOfMemory
from autofit.trial.trial import Trial
from autofit.tune.cliffs import find_tune_cliffs, unsteady_notes
from benchmarks.probe_machine import ProbedMachine

MODEL = build_model(ModelShape(layers=24, experts=64, used=4, embd=1024, ff=1024, vocab=512))


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    """A machine on which a card with less than 250 MiB left generates at half the speed."""
    card = Device("CUDA0", total_mib=2400, context_mib=300, pool_mib=60, reserve_mib=0)
    second = Device("CUDA1", total_mib=2400, context_mib=300, pool_mib=60, reserve_mib=0)
    machine = Machine(
        "edge", (card, second), Host(), quirks=Quirks(edge_mib=250, edge_loss=3.0)
    ).without_noise()
    case = Case(0, machine, MODEL, 8192, ((600, 33),))
    return ProbedMachine.of(case, tmp_path_factory.mktemp("edge"))


def trial(
    number: int,
    candidate,
    tg: float,
    *,
    pp: float = 1000.0,
    layout: str = "single:CUDA0",
    phase: str = "search",
    outcome=None,
) -> Trial:
    """A launch of that generation rate."""
    sample = Sample(600, 600 / pp, 600 / pp, 33, 32 / tg)
    return Trial(
        number=number,
        purpose=purpose_of(phase),
        candidate=candidate,
        outcome=outcome or Completed(),
        layout=layout,
        measurement=Measurement(samples=(sample,)),
    )


def line(probed, rates, *, kind="q8_0", layout="single:CUDA0"):
    """Launches by number of host layers."""
    return [
        trial(number, probed.candidate(layout, kind, n), tg, layout=layout)
        for number, (n, tg) in enumerate(rates.items(), start=1)
    ]


def noisy(trials, seed=1, sd=0.01):
    """The same launches three more times, a little faster or slower."""
    rng = random.Random(seed)
    again = [
        trial(
            100 + i, one.candidate, 32 / one.measurement.samples[0].predicted_s * rng.gauss(1, sd)
        )
        for i, one in enumerate(one for one in trials for _ in range(3))
    ]
    return [*trials, *again]


def test_one_layer_that_costs_a_sixth_is_a_cliff(probed):
    """The step has its numbers, its layout and its KV type."""
    trials = noisy(line(probed, {22: 38.0, 21: 40.0, 20: 42.0, 19: 35.3}))

    (cliff,) = find_tune_cliffs(trials, probed.factory.task)

    assert cliff.to_dict() | {"ratio": 0, "low": 0, "high": 0} == {
        "param": "n_cpu_moe",
        "from": 20,
        "to": 19,
        "metric": "tg",
        "ratio": 0,
        "low": 0,
        "high": 0,
        "layout": "single:CUDA0",
        "cache_type": "q8_0",
    }
    assert cliff.ratio == pytest.approx(0.84, abs=0.02)
    assert cliff.low < cliff.ratio < cliff.high < 0.9


def test_gains_and_noise_are_no_cliffs(probed):
    """Fewer host layers that are faster, within the noise, are expected."""
    trials = noisy(line(probed, {22: 38.0, 21: 40.0, 20: 39.6, 19: 43.0}))

    assert find_tune_cliffs(trials, probed.factory.task) == []


def test_neighbours_differ_in_one_parameter(probed):
    """Another KV type or layout is no neighbour, nor is a failure or a proof."""
    here = line(probed, {20: 42.0})
    other = line(probed, {19: 20.0}, kind="f16")
    elsewhere = line(probed, {19: 20.0}, layout="single:CUDA1")
    candidate = probed.candidate("single:CUDA0", "q8_0", 19)
    proof = trial(7, candidate, 20.0, phase="prove")
    failed = trial(8, candidate, 20.0, outcome=OutOfMemory("prompt", "full"))

    assert find_tune_cliffs([*here, *other, *elsewhere, proof, failed], probed.factory.task) == []


def test_layouts_over_several_devices_count_host_layers(probed):
    """No single setting has their number."""
    trials = noisy(line(probed, {12: 40.0, 10: 12.0}, layout="balanced"))

    (cliff,) = find_tune_cliffs([t for t in trials if t.layout == "balanced"], probed.factory.task)

    assert (cliff.param, cliff.from_value, cliff.to_value) == ("n_cpu_moe", 12, 10)
    assert cliff.layout == "balanced"


def test_larger_ubatch_that_is_slower_is_a_cliff(probed):
    """Prompt processing gets slower with a larger ubatch."""
    base = probed.candidate("single:CUDA0", "q8_0", 22)
    rates = {512: 800.0, 1024: 1200.0, 2048: 1711.0, 4096: 94.0}
    trials = [
        trial(i, base.with_params(ubatch=ubatch), 40.0, pp=pp)
        for i, (ubatch, pp) in enumerate(rates.items())
    ]

    (cliff,) = find_tune_cliffs(trials, probed.factory.task)

    assert (cliff.param, cliff.from_value, cliff.to_value) == ("ubatch", 2048, 4096)
    assert cliff.metric == "pp"


def test_launches_of_one_candidate_that_differ_are_named(probed):
    """Their note has the spread and a possible cause."""
    edge = probed.candidate("single:CUDA0", "q8_0", 19)
    calm = [probed.candidate("single:CUDA0", "q8_0", n) for n in (20, 21, 22)]
    trials = [
        *(trial(i, edge, tg, phase="confirm") for i, tg in enumerate([44.0, 5.0, 40.0, 9.0])),
        *(
            trial(10 + i, one, 40.0 + 0.1 * (i % 4), phase="confirm")
            for i, one in enumerate(one for one in calm for _ in range(4))
        ),
    ]

    (note,) = unsteady_notes(trials, probed.factory.task)

    assert note.startswith("launches 0, 1, 2, 3 of one candidate differ by ")
    assert note.endswith("those of others: the candidate may be at the limit of memory")
    busy = Conditions(seconds=1.0, cores=2, others_cores=1.5)
    trials[1] = replace(trials[1], measurement=replace(trials[1].measurement, conditions=busy))
    (disturbed,) = unsteady_notes(trials, probed.factory.task)
    assert "the machine was busy, or the candidate may be at the limit" in disturbed
    assert unsteady_notes(trials[4:], probed.factory.task) == []


def test_cliff_of_real_launches_is_found(probed, tmp_path):
    """Servers with less and less memory left: the one below the edge generates slowly."""
    truth = probed.truth("single:CUDA0", "q8_0")
    numbers = range(truth.fits + 4, truth.fits - 1, -1)
    candidates = [probed.candidate("single:CUDA0", "q8_0", n) for n in numbers]

    trials = probed.launch(
        tmp_path / "study", candidates, layout="single:CUDA0", phase="search", repeats=2
    )

    assert {one.outcome.kind for one in trials} == {"completed"}
    cliff = find_tune_cliffs(trials, probed.factory.task)[0]
    assert cliff.metric == "tg"
    assert cliff.ratio < 0.8
    free = [one.measurement.free_mib["CUDA0"] for one in trials]
    edge = next(n for n, mib in zip(numbers, free, strict=True) if mib < 250)
    assert (cliff.from_value, cliff.to_value) == (edge + 1, edge)
