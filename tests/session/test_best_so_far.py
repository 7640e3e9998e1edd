"""The best so far of a tune that ended without a winner, after each of its phases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from output.tune_sample import RESULT
from study.study_sample import header, measurement, trial
from trial.purpose_sample import purpose_of

from autofit.session.best_so_far import BestSoFar, find_best_so_far
from autofit.study.study_folder import Study
from autofit.trial.outcome import OutOfMemory
from autofit.trial.trial import Trial

FULL = OutOfMemory("prompt", "cudaMalloc failed", device="CUDA0")
OWN = trial(1, phase="baseline", measured=measurement(20.0), n_cpu_moe=0)
SLOW = trial(2, phase="boundary", measured=measurement(30.0), n_cpu_moe=24)
FAST = trial(3, measured=measurement(60.0), n_cpu_moe=18)
GOOD = trial(4, measured=measurement(50.0), n_cpu_moe=20)


def in_round(one: Trial, number: int, rate: float, *, launch: int) -> Trial:
    """Return a launch of the same candidate in a round, with that rate of generation."""
    purpose = purpose_of("confirm", round=number)
    return replace(one, number=launch, purpose=purpose, measurement=measurement(rate))


def best_of(folder: Path, *trials: Trial, result=None, **options) -> BestSoFar | None:
    """Return the best so far of a study with these launches."""
    with Study.create(folder / "study", header(options=options)) as study:
        for one in trials:
            study.write_trial(one)
        if result is not None:
            study.conclude(result)
    return find_best_so_far(Study.open(folder / "study"))


def test_after_the_baseline_it_is_the_baseline(tmp_path):
    """It has no speedup over itself, and is not proven."""
    best = best_of(tmp_path, OWN)

    assert best is not None
    assert (best.is_baseline, best.gain, best.is_proven) == (True, None, False)


def test_during_the_search_it_is_the_fastest_that_ran(tmp_path):
    """Its speedup comes from single launches, and is neither confirmed nor proven."""
    best = best_of(tmp_path, OWN, SLOW, FAST, GOOD)

    assert best is not None
    assert best.trial.number == 3
    assert best.gain is not None
    assert (best.gain.n, best.gain.low, best.is_confirmed, best.is_proven) == (
        0,
        None,
        False,
        False,
    )
    # 128 and 256 generated tokens at 60 instead of 20 t/s, and the same prompts.
    assert 2 < best.gain.median < 3
    assert best.to_dict()["params"]["n_cpu_moe"] == 18


def test_a_candidate_that_failed_in_any_launch_is_no_best(tmp_path):
    """A finalist that is out of memory in a round or in its proof is left out."""
    failed = trial(5, FULL, phase="prove", n_cpu_moe=18)
    best = best_of(tmp_path, OWN, SLOW, FAST, GOOD, failed)

    assert best is not None
    assert best.trial.number == 4


def test_in_the_rounds_only_their_launches_count(tmp_path):
    """A leader has an interval from three rounds on, and is confirmed if they decide."""
    rounds = [
        in_round(one, number, rate + number / 10, launch=10 * number + place)
        for number in (1, 2, 3, 4, 5)
        for place, (one, rate) in enumerate(((OWN, 20.0), (GOOD, 50.0)))
    ]
    first = best_of(tmp_path / "first", OWN, FAST, GOOD, *rounds[:2])
    whole = best_of(tmp_path / "whole", OWN, FAST, GOOD, *rounds)

    assert first is not None
    assert whole is not None
    assert [best.trial.candidate for best in (first, whole)] == [GOOD.candidate] * 2
    assert (first.gain.n, first.gain.low, first.is_confirmed) == (1, None, False)
    assert whole.gain.n == 5
    assert 1 < whole.gain.low < whole.gain.median
    assert whole.is_confirmed
    assert whole.estimates["tg_per_s"]["n"] == 5


def test_a_proof_makes_it_proven(tmp_path):
    """Its memory is that of the proof."""
    used = replace(measurement(), free_mib={"CUDA0": 77.0})
    best = best_of(tmp_path, OWN, FAST, trial(5, phase="prove", measured=used, n_cpu_moe=18))

    assert best is not None
    assert best.is_proven
    assert best.to_dict()["free_mib"] == {"CUDA0": 77.0}
    assert best.trial.number == 3


def test_a_requirement_is_kept_if_any_candidate_keeps_it(tmp_path):
    """A faster candidate that misses it is left out."""
    best = best_of(tmp_path, OWN, SLOW, FAST, requirements=["tg<=40"])

    assert best is not None
    assert best.trial.number == 2


@pytest.mark.parametrize(
    ("trials", "result"),
    [
        ((), None),
        ((OWN, FAST), RESULT),
        ((SLOW, FAST), None),
        ((OWN, FAST), {"boundary": []}),
        ((trial(1, FULL, phase="baseline"),), None),
    ],
)
def test_other_studies_have_none(tmp_path, trials, result):
    """Neither a finished tune nor a probe, a comparison or a study without speeds has one."""
    assert best_of(tmp_path, *trials, result=result) is None


def test_a_tune_that_proved_nothing_has_one(tmp_path):
    """Its result has no winner."""
    assert best_of(tmp_path, OWN, FAST, result={**RESULT, "winner": None}) is not None
