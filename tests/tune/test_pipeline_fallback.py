"""Whole tunes whose fastest candidate is not the winner."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from session.simulated_launching import SimulatedLaunching
from session.task_sample import runner
from tune.whole_tune import tune

from autofit.trial.outcome import Completed, Crashed


def _seconds(candidate) -> float:
    """Fewer host layers are faster, and all are faster than what the runtime chooses."""
    return 1.0 + 0.1 * candidate.get_int("n_cpu_moe", 30)


def _tuned(about, folder, outcome_of, *, max_launches, seconds_of=_seconds, free_mib=900.0):
    """The result of a tune whose launches have these outcomes."""
    launching = SimulatedLaunching(outcome_of, seconds_of, free_mib)
    running = replace(runner(about, folder), launching=launching)
    running.budget.max_launches = max_launches
    return tune(about, running)


def test_a_failed_proof_is_followed_by_the_next(about, tmp_path):
    """The next finalist is proven and recommended; the notes say why the first was not."""
    failed = []

    def outcome_of(candidate, request_plan):
        # Whatever is proven first crashes at full context, and only there.
        if request_plan.name == "prove" and "n_cpu_moe" in candidate.params:
            failed[:] = failed or [candidate]
            if candidate == failed[0]:
                return Crashed("prompt", "the GPU was lost", "device_lost")
        return Completed()

    result = _tuned(about, tmp_path / "study", outcome_of, max_launches=6)

    assert len(failed) == 1
    assert result["winner"]["proven"] is True
    assert result["winner"]["params"] != dict(failed[0].params)
    words = ": a finalist does not run at full context: crashed: the GPU was lost"
    assert any(words in note for note in result["notes"])


def test_the_baseline_wins_if_nothing_faster_is_proven(about, tmp_path):
    """If every finalist fails its proof, the baseline is proven and recommended."""

    def outcome_of(candidate, request_plan):
        if request_plan.name == "prove" and "n_cpu_moe" in candidate.params:
            return Crashed("prompt", "the GPU was lost", "device_lost")
        return Completed()

    result = _tuned(about, tmp_path / "study", outcome_of, max_launches=4)

    assert result["winner"]["proven"] is True
    assert "n_cpu_moe" not in result["winner"]["params"]
    assert result["gain"]["median"] == 1.0
    assert any(note.startswith("no faster candidate can be") for note in result["notes"])


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (0.005, "the runtime's own choice was confirmed as the best found"),
        (0.4, "the runtime's own choice was fastest in 12 rounds, but 2 candidates may be"),
    ],
)
def test_a_note_says_how_certain_a_winning_baseline_is(about, tmp_path, noise, words):
    """With noise above the differences of contenders the rounds do not decide."""
    rng = random.Random(1)

    def seconds_of(candidate) -> float:
        is_baseline = "n_cpu_moe" not in candidate.params
        return (1.0 if is_baseline else 1.15) * (1 + noise * rng.uniform(-1, 1))

    result = _tuned(
        about, tmp_path / "study", lambda *_: Completed(), max_launches=3, seconds_of=seconds_of
    )

    assert "n_cpu_moe" not in result["winner"]["params"]
    assert any(note.startswith(words) for note in result["notes"]), result["notes"]


def test_searched_candidates_may_fill_the_context(about, tmp_path):
    """Those of the search have a limit for it; baseline, rounds and proofs have none."""
    asked = []

    def outcome_of(candidate, request_plan):
        is_searched = request_plan.name in ("fit", "short") and candidate != about.baseline
        asked.append((is_searched, request_plan.full_context_check))
        return Completed()

    _tuned(about, tmp_path / "study", outcome_of, max_launches=6)
    fills = [fill for is_searched, fill in asked if is_searched]

    assert len(fills) > 1
    assert all(set(fill.below_mib) == {"CUDA0"} for fill in fills)
    assert {fill.request.prompt_tokens for fill in fills} == {about.workload.context - 64 - 8}
    assert asked[0][1] is None
    assert all(fill is None for is_searched, fill in asked if not is_searched)


@pytest.mark.parametrize(("free_mib", "is_first_proven"), [(8.0, True), (34.0, False)])
def test_a_tight_candidate_is_proven_before_rounds(about, tmp_path, free_mib, is_first_proven):
    """No round is spent on a candidate that may die when it is served."""
    asked = []

    def outcome_of(candidate, request_plan):
        asked.append(request_plan.name)
        return Completed()

    _tuned(about, tmp_path / "study", outcome_of, max_launches=6, free_mib=free_mib)

    assert (asked.index("prove") < asked.index("full")) == is_first_proven
