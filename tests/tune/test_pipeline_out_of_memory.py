"""Whole tunes whose fastest candidates run, but not at full context."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from session.simulated_launching import NO_ROOM, SimulatedLaunching
from tune.whole_tune import Tuned, whole_tune

from autofit.runtime.server.request_plan import RequestPlan
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Completed, Outcome, OutOfMemory

# The host layers with which a launch runs, and those with which it runs at full context.
RUNS, RUNS_FULL = 4, 6


def _host_layers(candidate: Candidate) -> int:
    return candidate.get_int("n_cpu_moe", 99)


def _outcome(candidate: Candidate, request_plan: RequestPlan) -> Outcome:
    least = RUNS_FULL if request_plan.name == "prove" else RUNS
    return NO_ROOM if _host_layers(candidate) < least else Completed()


def _seconds(candidate: Candidate) -> float:
    """Fewer host layers are faster; the runtime's choice is slow."""
    return 2.0 + 0.1 * candidate.get_int("n_cpu_moe", 20)


def tuned_in(
    folder: Path,
    task: Task,
    *,
    max_launches: int = 24,
    free_mib: float = 8.0,
    outcome_of: Callable[[Candidate, RequestPlan], Outcome] = _outcome,
) -> Tuned:
    """A tune in that study; its launches leave some MiB on the card, by default almost none."""
    launching = SimulatedLaunching(seconds_of=_seconds, outcome_of=outcome_of, free_mib=free_mib)
    return whole_tune(folder, task, launching, max_launches=max_launches, checks_answers=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of the study."""
    return tmp_path_factory.mktemp("tune") / "study"


@pytest.fixture(scope="module")
def tuned(about, folder) -> Tuned:
    """A tune with enough launches to continue the search."""
    return tuned_in(folder, about)


def test_the_search_continues_without_the_best(tuned):
    """A candidate that runs at full context is found, measured and wins."""
    proofs = [t for t in tuned.trials if t.phase == "prove"]
    failed = [t for t in proofs if not t.is_completed]
    winner = tuned.result["winner"]["params"]

    assert failed
    assert winner["n_cpu_moe"] == RUNS_FULL
    measured = [t for t in tuned.trials if t.phase in {"boundary", "search"} and t.is_completed]
    assert any(t.candidate.params == winner for t in measured)
    assert any("does not run at full context" in note for note in tuned.result["notes"])


def test_boundaries_are_those_of_a_full_context(tuned):
    """They have the fewest host layers that run at full context, not those that only started."""
    rows = tuned.result["boundary"]

    assert {row["cache_type"] for row in rows} == {"f16", "q8_0"}
    assert (rows[0]["fits"], rows[0]["fails"]) == (RUNS_FULL, RUNS_FULL - 1)
    for row in rows:
        assert row["fits"] is None or row["fits"] >= RUNS_FULL, row
        assert row["outcome"] == "out_of_memory" or not row["proven"]
    assert any(row["proven"] for row in rows)


def test_a_resumed_tune_repeats_no_launch(about, folder, tuned):
    """The search learns from the proofs of the study."""
    again = tuned_in(folder, about)

    assert again.launched == 0
    assert again.result["winner"]["params"] == tuned.result["winner"]["params"]
    assert again.result["boundary"] == tuned.result["boundary"]


@pytest.mark.parametrize("max_launches", [3, 5])
def test_the_best_steps_back_if_the_search_cannot_continue(about, tmp_path, max_launches):
    """A budget of few launches has a proven winner, too."""
    few = tuned_in(tmp_path / "study", about, max_launches=max_launches)

    assert few.result["winner"]["params"]["n_cpu_moe"] == RUNS_FULL
    assert any("stepped back" in note for note in few.result["notes"])


def test_a_late_failure_does_not_continue_the_search(about, tmp_path):
    """The result has why the search ended, whatever its winner's proof shows."""
    late = tuned_in(tmp_path / "study", about, max_launches=60, free_mib=900.0)

    assert any(t.phase == "prove" and not t.is_completed for t in late.trials)
    # A launch showed that there is no room for another layer, so no note says so.
    assert late.result["winner"]["params"]["n_cpu_moe"] == RUNS_FULL
    assert not any("more expert layer" in note for note in late.result["notes"])
    assert late.result["search"]["ended_by"] in {"gain", "space", "stalled"}


def test_a_lack_of_host_memory_counts_for_one_launch(about, tmp_path):
    """Another program may have used it for a moment: others are still proven."""
    killed: list[Candidate] = []

    def outcome_of(candidate: Candidate, request_plan: RequestPlan) -> Outcome:
        if request_plan.name == "prove" and not killed:
            killed.append(candidate)
            return OutOfMemory("prompt", "SIGKILL", "host")
        return Completed() if _host_layers(candidate) >= RUNS else NO_ROOM

    tuned = tuned_in(tmp_path / "study", about, outcome_of=outcome_of)

    assert killed[0].params != tuned.result["winner"]["params"]
    assert tuned.result["winner"]["params"]["n_cpu_moe"] in {RUNS, RUNS + 1}
    notes = [note for note in tuned.result["notes"] if "full context" in note]
    assert [note.split(": ", 1)[1] for note in notes] == [
        "a finalist does not run at full context: out of memory: SIGKILL"
    ]
