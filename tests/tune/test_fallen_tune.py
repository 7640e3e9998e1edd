"""Whole tunes whose fastest candidates run, and die when their context is filled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from session.simulated_launching import NO_ROOM, SimulatedLaunching
from tune.whole_tune import Tuned, one_card, whole_tune

from autofit.runtime.server.request_plan import RequestPlan
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Completed, Outcome, OutOfMemory

# Host layers that a launch runs with, and that a full context holds with.
RUNS, HOLDS = 4, 6


def _host_layers(candidate: Candidate) -> int:
    return candidate.get_int("n_cpu_moe", 99)


def _outcome(candidate: Candidate, request_plan: RequestPlan) -> Outcome:
    least = HOLDS if request_plan.name == "prove" else RUNS
    return NO_ROOM if _host_layers(candidate) < least else Completed()


def _seconds(candidate: Candidate) -> float:
    """Fewer host layers are faster; the runtime's choice is slow."""
    return 2.0 + 0.1 * candidate.get_int("n_cpu_moe", 20)


@pytest.fixture(scope="module")
def about(tmp_path_factory) -> Task:
    """A task on one card."""
    return one_card(tmp_path_factory.mktemp("fallen"))


def tuned_in(
    folder: Path,
    task: Task,
    *,
    max_launches: int = 24,
    free_mib: float = 8.0,
    outcome_of: Callable[[Candidate, RequestPlan], Outcome] = _outcome,
) -> Tuned:
    """A tune in that study, all of whose launches leave the card next to nothing, or so much."""
    launching = SimulatedLaunching(seconds_of=_seconds, outcome_of=outcome_of, free_mib=free_mib)
    return whole_tune(folder, task, launching, max_launches=max_launches, checks_answers=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the study lies."""
    return tmp_path_factory.mktemp("tune") / "study"


@pytest.fixture(scope="module")
def tuned(about, folder) -> Tuned:
    """A tune with launches enough to search on."""
    return tuned_in(folder, about)


def test_the_search_goes_on_after_what_fell(tuned):
    """What holds is found by the search, measured like all others, and wins."""
    proofs = [t for t in tuned.trials if t.phase == "prove"]
    fell = [t for t in proofs if not t.is_completed]
    winner = tuned.result["winner"]["params"]

    assert fell
    assert winner["n_cpu_moe"] == HOLDS
    measured = [t for t in tuned.trials if t.phase in {"boundary", "search"} and t.is_completed]
    assert any(t.candidate.params == winner for t in measured)
    assert any("does not run at full context" in note for note in tuned.result["notes"])


def test_boundaries_are_those_of_a_full_context(tuned):
    """They tell the fewest host layers that hold, not those that ran for a moment.

    What needs at least as much as what fell is not launched for it.
    """
    rows = tuned.result["boundary"]

    assert {row["cache_type"] for row in rows} == {"f16", "q8_0"}
    for row in rows:
        assert (row["fits"], row["fails"]) == (HOLDS, HOLDS - 1), row
        assert (row["outcome"] == "out_of_memory") is row["proven"]
    assert any(row["proven"] for row in rows)


def test_going_on_with_the_study_repeats_no_launch(about, folder, tuned):
    """What proofs showed is told to the search again, from the study."""
    again = tuned_in(folder, about)

    assert again.launched == 0
    assert again.result["winner"]["params"] == tuned.result["winner"]["params"]
    assert again.result["boundary"] == tuned.result["boundary"]


@pytest.mark.parametrize("max_launches", [3, 5])
def test_without_launches_to_search_on_the_best_steps_back(about, tmp_path, max_launches):
    """A budget of few launches still ends with what holds."""
    few = tuned_in(tmp_path / "study", about, max_launches=max_launches)

    assert few.result["winner"]["params"]["n_cpu_moe"] == HOLDS
    assert any("stepped back" in note for note in few.result["notes"])


def test_what_falls_after_the_search_does_not_open_it_again(about, tmp_path):
    """Why the search ended is told as it was, whatever its winner's proof shows."""
    late = tuned_in(tmp_path / "study", about, max_launches=60, free_mib=900.0)

    assert any(t.phase == "prove" and not t.is_completed for t in late.trials)
    # One layer more was launched and does not hold, so no room for it is told.
    assert late.result["winner"]["params"]["n_cpu_moe"] == HOLDS
    assert not any("more expert layer" in note for note in late.result["notes"])
    assert late.result["search"]["ended_by"] in {"gain", "space", "stalled"}


def test_want_of_host_memory_tells_of_one_launch(about, tmp_path):
    """Another program may have taken it for a moment: what needs more of it is still proven."""
    killed: list[Candidate] = []

    def outcome_of(candidate: Candidate, request_plan: RequestPlan) -> Outcome:
        if request_plan.name == "prove" and not killed:
            killed.append(candidate)
            return OutOfMemory("prompt", "SIGKILL", "host")
        return Completed() if _host_layers(candidate) >= RUNS else NO_ROOM

    tuned = tuned_in(tmp_path / "study", about, outcome_of=outcome_of)

    assert killed[0].params != tuned.result["winner"]["params"]
    assert tuned.result["winner"]["params"]["n_cpu_moe"] in {RUNS, RUNS + 1}
    told = [note for note in tuned.result["notes"] if "full context" in note]
    assert [note.split(": ", 1)[1] for note in told] == [
        "a finalist does not run at full context: out of memory: SIGKILL"
    ]
