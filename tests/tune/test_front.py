"""The front of a tune, from launches that differ in speeds and headroom."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from trial.purpose_sample import purpose_of

from autofit.session.requirement import parse_requirement
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement, Sample
from autofit.trial.outcome import Completed, TimedOut
from autofit.trial.trial import Trial
from autofit.trial.workload import Request, Workload
from autofit.tune.front import find_front

WORKLOAD = Workload("front", context=4096, parallel=1, requests=(Request(1000, 101),))


def _trial(name: str, pp: float, tg: float, free_mib: float | None, **changes) -> Trial:
    sample = Sample(1000, 1000 / pp, 1000 / pp, 101, 100 / tg)
    free = {} if free_mib is None else {"CUDA0": free_mib, "host": 9000.0}
    fields = {
        "number": 1, "purpose": purpose_of("search"), "candidate": Candidate({"name": name}),
        "outcome": Completed(), "layout": "balanced",
        "measurement": Measurement(samples=(sample,), free_mib=free),
    }  # fmt: skip
    return Trial(**{**fields, **changes})


def _front(*trials: Trial, require: tuple[str, ...] = ()) -> list[str]:
    about = SimpleNamespace(
        workload=WORKLOAD, requirements=tuple(parse_requirement(text) for text in require)
    )
    return [point.candidate.params["name"] for point in find_front(trials, about)]


def test_beaten_candidates_are_left_out() -> None:
    """Each that stays is best in something; the fastest prompts come first."""
    trials = [
        _trial("prompts", 900, 10, 300),
        _trial("generation", 500, 30, 300),
        _trial("beaten", 499, 29, 299),
        _trial("roomy", 400, 9, 2000),
    ]

    assert _front(*trials) == ["prompts", "generation", "roomy"]


def test_small_differences_of_headroom_do_not_count() -> None:
    """A few MiB more are no reason to keep a slower candidate."""
    trials = [_trial("fast", 900, 30, 1024), _trial("slow", 800, 20, 1030)]

    assert _front(*trials) == ["fast"]


def test_the_front_keeps_the_requirements() -> None:
    """A candidate that misses one is not on it, and beats nothing."""
    trials = [_trial("fast", 900, 30, 1000), _trial("allowed", 700, 29, 500)]

    assert _front(*trials, require=("pp<=800",)) == ["allowed"]


def test_failures_and_proofs_are_no_points() -> None:
    """A proof has other prompts, and a failure has no speed."""
    trials = [
        _trial("good", 500, 20, 500),
        _trial("proof", 900, 90, 900, purpose=purpose_of("prove")),
        _trial("slow", 900, 90, 900, outcome=TimedOut("prompt", "too slow")),
    ]

    assert _front(*trials) == ["good"]


def test_a_candidate_has_the_medians_of_its_launches() -> None:
    """Speeds are medians, and headroom is the least of all launches."""
    trials = [_trial("one", pp, 20, free) for pp, free in ((400, 700), (500, 300), (900, 800))]

    (point,) = find_front(trials, SimpleNamespace(workload=WORKLOAD, requirements=()))

    assert point.pp_per_s == pytest.approx(500)
    assert point.to_dict()["free_mib"] == {"CUDA0": 300, "host": 9000.0}
    assert point.launches == 3


def test_without_counters_headroom_does_not_count() -> None:
    """The front is that of the speeds."""
    trials = [_trial("fast", 900, 30, None), _trial("slow", 800, 20, None)]

    assert _front(*trials) == ["fast"]
