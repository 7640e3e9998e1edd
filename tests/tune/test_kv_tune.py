"""Whole tunes in which a KV type costs too much of the answers' quality, or does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from quality.simulated_answers import NO_CHANGES, KvChanges
from session.simulated_launching import SimulatedLaunching
from tune.whole_tune import Tuned, one_card, whole_tune

from autofit.errors import Interrupted
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


@pytest.fixture(scope="module")
def about(tmp_path_factory) -> Task:
    """A task on one card, with two KV types to choose from."""
    return one_card(tmp_path_factory.mktemp("kv"))


def tuned_in(
    folder: Path,
    task: Task,
    changes: KvChanges,
    *,
    max_launches: int = 10,
    free_mib: float = 900.0,
    **options: Any,
) -> Tuned:
    """A tune in that study, on launches of which a rule tells speed and answers."""
    launching = SimulatedLaunching(seconds_of=_seconds, client_of=changes, free_mib=free_mib)
    return whole_tune(folder, task, launching, max_launches=max_launches, **options)


@pytest.fixture
def tune(about, tmp_path) -> Callable[..., Tuned]:
    """Tunes the task, all times in one study."""

    def run(changes: KvChanges, *, task: Task = about, **options: Any) -> Tuned:
        return tuned_in(tmp_path / "study", task, changes, **options)

    return run


@pytest.fixture(scope="module")
def poor(about, tmp_path_factory) -> Tuned:
    """A tune of a model that the narrow type is not good enough for."""
    return tuned_in(tmp_path_factory.mktemp("poor") / "study", about, POOR)


def test_a_poor_kv_type_costs_no_round(poor):
    """It is scored once, by one candidate; then neither search nor rounds launch it."""
    (asked,) = poor.asking(ASKED)
    after = [trial for trial in poor.trials if trial.number > asked.number]

    assert kind_of(asked.candidate) == "q8_0"
    assert {kind_of(trial.candidate) for trial in after} == {"f16"}
    assert any(trial.phase in ("boundary", "search") for trial in after)
    assert len(poor.of_phase("confirm")) > 0
    assert poor.result["winner"]["params"]["cache_type_k"] == "f16"
    assert poor.result["winner"]["params"]["n_cpu_moe"] < 12


def test_what_is_told_of_a_poor_kv_type(poor):
    """The score, what follows from it, and the answers of the winner that has another type."""
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


def test_the_reference_is_asked_once(poor):
    """A wide winner is held against what the baseline said when the narrow type was scored."""
    assert poor.asked == [REFERENCE, ASKED, WINNER]


def test_a_good_kv_type_is_asked_no_more_than_after_the_rounds(tune):
    """The winner that was scored before its rounds is not asked again."""
    tuned = tune(NO_CHANGES)

    assert kind_of(Candidate(tuned.result["winner"]["params"])) == "q8_0"
    assert tuned.result["answers"]["verdict"] == "good"
    assert [score["verdict"] for score in tuned.result["kv_scores"]] == ["good"]
    others = tuned.asking(WINNER)
    (asked,) = tuned.asking(ASKED)
    is_winner = dict(asked.candidate.params) == tuned.result["winner"]["params"]
    assert len(others) == (0 if is_winner else 1)


def test_without_answers_nothing_is_scored(tune):
    """Those of random weights mean nothing: the narrow type is as good as any."""
    tuned = tune(POOR, checks_answers=False)

    assert tuned.asked == []
    assert tuned.result["kv_scores"] == []
    assert kind_of(Candidate(tuned.result["winner"]["params"])) == "q8_0"


def test_a_resumed_tune_pays_for_no_verdict_twice(about, poor):
    """What the study holds is read, and the result is the same."""
    again = tuned_in(Path(poor.result["study"]), about, POOR)

    assert again.launched == 0
    assert again.result["winner"] == poor.result["winner"]
    assert again.result["kv_scores"] == poor.result["kv_scores"]
    assert again.notes == poor.notes


@pytest.mark.parametrize("stops_at", [REFERENCE, ASKED])
def test_a_tune_that_is_stopped_while_scoring_goes_on(tune, stops_at):
    """Whatever was asked before the stop is not asked again."""
    with pytest.raises(Interrupted):
        tune(POOR, stops_at=stops_at)

    tuned = tune(POOR)

    assert tuned.asked == [REFERENCE, ASKED, WINNER]
    assert tuned.result["winner"]["params"]["cache_type_k"] == "f16"


def test_a_larger_budget_goes_on_from_the_verdict(tune):
    """A tune that is given more launches does not score again."""
    small = tune(POOR, max_launches=4)
    large = tune(POOR, max_launches=8)

    assert small.result["kv_scores"]
    assert large.asked.count(ASKED) == 1
    assert [t.number for t in large.asking(ASKED)] == [t.number for t in small.asking(ASKED)]


def test_a_search_that_has_ended_goes_on(tune):
    """With launches to spare the type is scored at the end, and the search is taken up again."""
    tuned = tune(POOR, max_launches=60)
    (asked,) = [trial.number for trial in tuned.asking(ASKED)]
    searched = [trial.number for trial in tuned.of_phase("boundary", "search")]

    assert len(searched) < 30
    assert min(searched) < asked < max(searched)
    assert tuned.result["search"]["ended_by"] in {"gain", "space", "stalled"}
    assert tuned.result["winner"]["params"]["cache_type_k"] == "f16"


def test_a_kv_type_that_was_asked_for_leaves_the_baseline(about, tune):
    """Where every candidate has it, there is nothing to go on with, and that is said."""
    pinned = replace(about, space=about.space.pin({"cache_type": "q8_0"}))
    tuned = tune(POOR, task=pinned)

    assert "the search space has nothing without KV q8_0" in tuned.notes
    assert "nothing else that ran can be recommended" in tuned.notes
    assert tuned.result["search"]["ended_by"] == "space"
    assert {row["cache_type"] for row in tuned.result["boundary"]} == {"q8_0"}
    assert "cache_type_k" not in tuned.result["winner"]["params"]
    assert tuned.of_phase("confirm") == []


def test_a_spent_budget_is_told(tune):
    """Without a launch left to search with, what is narrow is dropped all the same."""
    tuned = tune(POOR, max_launches=2)

    assert "the budget leaves nothing to search without KV q8_0; --kv-floor f16" in tuned.notes
    assert "cache_type_k" not in tuned.result["winner"]["params"]


def test_a_users_own_narrow_type_is_kept_with_a_word(about, tune):
    """The baseline is no recommendation: it is what runs today."""
    own = {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "n_cpu_moe": 0, "n_gpu_layers": 99}
    tuned = tune(POOR, task=replace(about, baseline_params=own))

    assert tuned.result["kv_scores"][0]["reference"] == "the baseline with f16 KV"
    assert tuned.result["winner"]["params"]["cache_type_k"] == "q8_0"
    assert "the command given with --baseline has KV q8_0, too: it is kept as" in tuned.notes


def test_what_leaves_a_device_next_to_nothing_is_proven_before_it_is_asked(tune):
    """A full context is more than an interview: what does not hold is not scored."""
    tuned = tune(POOR, free_mib=8.0)

    assert tuned.of_phase("prove")[0].purpose.role == "proof"
    assert ASKED in tuned.asked
