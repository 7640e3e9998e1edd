"""Whole tunes with a KV type whose answers are poor, or good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from quality.simulated_answers import NO_CHANGES, KvChanges
from session.simulated_launching import SimulatedLaunching
from tune.whole_tune import Tuned, whole_tune

from autofit.session.task import Task
from autofit.trial.candidate import Candidate

POOR = KvChanges({"q8_0": 0.3})
REFERENCE = ("reference_answers", "baseline")
ASKED = ("answers", "finalist")
WINNER = ("answers", "winner")


def kind_of(candidate: Candidate) -> str:
    """The KV type of keys."""
    return candidate.get_str("cache_type_k", "f16")


def _seconds(candidate: Candidate) -> float:
    """Fewer host layers are faster, narrow caches more so; the runtime's choice is slow."""
    narrow = 0.3 * (kind_of(candidate) == "q8_0")
    return 2.0 + 0.1 * candidate.get_int("n_cpu_moe", 20) - narrow


def tuned_in(
    folder: Path,
    task: Task,
    changes: KvChanges,
    *,
    max_launches: int = 10,
    free_mib: float = 900.0,
    **options: Any,
) -> Tuned:
    """A tune in that study, with speed and answers of launches by rules."""
    launching = SimulatedLaunching(seconds_of=_seconds, client_of=changes, free_mib=free_mib)
    return whole_tune(folder, task, launching, max_launches=max_launches, **options)


@pytest.fixture
def tune(about, tmp_path) -> Callable[..., Tuned]:
    """A function that tunes the task in one study."""

    def run(changes: KvChanges, *, task: Task = about, **options: Any) -> Tuned:
        return tuned_in(tmp_path / "study", task, changes, **options)

    return run


@pytest.fixture(scope="module")
def poor(about, tmp_path_factory) -> Tuned:
    """A tune of a model with poor answers with the narrow type."""
    return tuned_in(tmp_path_factory.mktemp("poor") / "study", about, POOR)


def test_a_poor_kv_type_enters_no_round(poor):
    """It is scored once, by one candidate; then neither search nor rounds launch it."""
    (asked,) = poor.asking(ASKED)
    after = [trial for trial in poor.trials if trial.number > asked.number]

    assert kind_of(asked.candidate) == "q8_0"
    assert {kind_of(trial.candidate) for trial in after} == {"f16"}
    assert any(trial.phase in ("boundary", "search") for trial in after)
    assert len(poor.of_phase("confirm")) > 0
    assert poor.result["winner"]["params"]["cache_type_k"] == "f16"
    assert poor.result["winner"]["params"]["n_cpu_moe"] < 12


def test_the_result_has_the_score_of_a_poor_kv_type(poor):
    """It also has notes on it, and the answers of the winner with another type."""
    (score,) = poor.result["kv_scores"]

    assert "no candidate with KV q8_0 is recommended\nthe search continues without KV q8_0" in (
        poor.notes
    )
    assert (score["cache_type_k"], score["cache_type_v"]) == ("q8_0", "q8_0")
    assert (score["verdict"], score["holds"], score["reference"]) == (
        "poor",
        False,
        "the baseline",
    )
    assert score["quality"]["agreement"] < 0.85
    assert poor.result["answers"]["verdict"] == "equal"
    assert poor.result["answers"]["quality"] is None


def test_the_reference_is_launched_once(poor):
    """A wide winner is compared with the answers for the narrow type's score."""
    assert poor.asked == [REFERENCE, ASKED, WINNER]


def test_a_scored_winner_is_not_launched_for_answers_again(tune):
    """Its score from before the rounds is used."""
    tuned = tune(NO_CHANGES)

    assert kind_of(Candidate(tuned.result["winner"]["params"])) == "q8_0"
    assert tuned.result["answers"]["verdict"] == "good"
    assert [score["verdict"] for score in tuned.result["kv_scores"]] == ["good"]
    others = tuned.asking(WINNER)
    (asked,) = tuned.asking(ASKED)
    is_winner = dict(asked.candidate.params) == tuned.result["winner"]["params"]
    assert len(others) == (0 if is_winner else 1)


def test_nothing_is_scored_for_a_random_model(tune):
    """Its answers mean nothing, so that the narrow type may win."""
    tuned = tune(POOR, checks_answers=False)

    assert tuned.asked == []
    assert tuned.result["kv_scores"] == []
    assert kind_of(Candidate(tuned.result["winner"]["params"])) == "q8_0"


def test_a_resumed_tune_repeats_no_score(about, poor):
    """All is taken from the study, and the result is the same."""
    again = tuned_in(Path(poor.result["study"]), about, POOR)

    assert again.launched == 0
    assert again.result["winner"] == poor.result["winner"]
    assert again.result["kv_scores"] == poor.result["kv_scores"]
    assert again.notes == poor.notes


@pytest.mark.parametrize("stops_at", [REFERENCE, ASKED])
def test_a_tune_stopped_while_scoring_resumes(tune, stops_at):
    """Answers from before the stop are used."""
    with pytest.raises(KeyboardInterrupt):
        tune(POOR, stops_at=stops_at)

    tuned = tune(POOR)

    assert tuned.asked == [REFERENCE, ASKED, WINNER]
    assert tuned.result["winner"]["params"]["cache_type_k"] == "f16"


def test_a_larger_budget_keeps_the_score(tune):
    """A tune that is given more launches does not score again."""
    small = tune(POOR, max_launches=8)
    large = tune(POOR, max_launches=12)

    assert small.result["kv_scores"]
    assert large.asked.count(ASKED) == 1
    assert [t.number for t in large.asking(ASKED)] == [t.number for t in small.asking(ASKED)]


def test_an_ended_search_continues_without_a_poor_type(tune):
    """With enough launches the type is scored at the end of the search."""
    tuned = tune(POOR, max_launches=60)
    (asked,) = [trial.number for trial in tuned.asking(ASKED)]
    searched = [trial.number for trial in tuned.of_phase("boundary", "search")]

    assert len(searched) < 30
    assert min(searched) < asked < max(searched)
    assert tuned.result["search"]["ended_by"] in {"gain", "space", "stalled"}
    assert tuned.result["winner"]["params"]["cache_type_k"] == "f16"


def test_a_poor_pinned_type_leaves_the_baseline(about, tune):
    """If every candidate has it, a note says that nothing is left to search."""
    pinned = replace(about, space=about.space.pin({"cache_type": "q8_0"}))
    tuned = tune(POOR, task=pinned)

    assert "all candidates of the search space have KV q8_0" in tuned.notes
    assert "no other candidate that ran can be recommended" in tuned.notes
    assert tuned.result["search"]["ended_by"] == "space"
    assert {row["cache_type"] for row in tuned.result["boundary"]} == {"q8_0"}
    assert "cache_type_k" not in tuned.result["winner"]["params"]
    assert tuned.of_phase("confirm") == []


def test_a_note_says_that_the_budget_is_used_up(tune):
    """The poor type is excluded although no launch is left."""
    tuned = tune(POOR, max_launches=2)

    assert "the budget is too small to search without KV q8_0; --kv-floor f16" in tuned.notes
    assert "cache_type_k" not in tuned.result["winner"]["params"]


def test_a_users_own_poor_type_is_kept_with_a_note(about, tune):
    """The baseline is no recommendation: it is what runs today."""
    own = {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "n_cpu_moe": 0, "n_gpu_layers": 99}
    tuned = tune(POOR, task=replace(about, baseline_params=own))

    assert tuned.result["kv_scores"][0]["reference"] == "the baseline with f16 KV"
    assert tuned.result["winner"]["params"]["cache_type_k"] == "q8_0"
    assert any("--baseline also has KV q8_0" in note for note in tuned.result["notes"])


def test_a_tight_candidate_is_proven_before_it_is_scored(tune):
    """A candidate that fails its proof is not scored."""
    tuned = tune(POOR, free_mib=8.0)

    assert tuned.of_phase("prove")[0].purpose.role == "proof"
    assert ASKED in tuned.asked
