"""The time and launches of a run: limits and what was spent."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trial.purpose_sample import purpose_of

from autofit.errors import UsageError
from autofit.runtime.planner.planner import PlannerUsage
from autofit.session.budget import Budget, OverheadTimer, parse_duration_s, spending
from autofit.trial.candidate import Candidate, Limits
from autofit.trial.outcome import Completed
from autofit.trial.trial import Overhead, Trial

PHASES = ("baseline", "boundary", "search", "confirm", "prove")


class Clock:
    """A clock that is set by hand."""

    now_s = 50.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400), (" 2 m ", 120), ("0.5s", 0.5)],
)
def test_durations_are_read(text, seconds):
    """Seconds, minutes and hours."""
    assert parse_duration_s(text) == seconds


@given(st.floats(0.001, 1e6), st.sampled_from([("s", 1), ("m", 60), ("h", 3600), ("", 1)]))
def test_every_duration_is_read_as_written(amount, unit):
    """Any number of any unit."""
    name, size = unit

    assert parse_duration_s(f"{amount:.4f}{name}") == pytest.approx(float(f"{amount:.4f}") * size)


@pytest.mark.parametrize(
    "text", ["", "soon", "1d", "-5m", "0", "0h", "1e3", "5 minutes", "nan", "inf", "m"]
)
def test_other_texts_are_no_duration(text):
    """Words, other units and an empty text are refused."""
    with pytest.raises(UsageError, match="is not a duration") as caught:
        parse_duration_s(text)
    assert "30m" in caught.value.hint


def test_without_limits_everything_is_allowed():
    """Every phase may launch at any time."""
    budget = Budget(Clock())

    assert all(budget.allows(phase, 1e9) for phase in PHASES)
    assert budget.left_for_s("search") is None


@given(st.integers(1, 40), st.integers(0, 60))
def test_launches_limit_the_search_alone(limit, made):
    """Baseline, boundary and search share the launches; confirming and proving have their own."""
    budget = Budget(Clock(), max_launches=limit)
    for number in range(made):
        budget.record_launch(("baseline", "boundary", "search")[number % 3])
    for _ in range(100):
        budget.record_launch("confirm")
        budget.record_launch("prove")

    assert budget.launches == made
    for phase in ("boundary", "search"):
        assert budget.allows(phase) == (made < limit)
    assert budget.allows("confirm")
    assert budget.allows("prove")


@given(st.floats(1, 1e5), st.floats(0, 2), st.integers(0, 20), st.floats(0, 1e5))
def test_later_phases_keep_their_share(total_s, share_spent, launches, expected_s):
    """A later phase may use the time that an earlier one may use."""
    clock = Clock()
    budget = Budget(clock, total_s, launches=launches)
    clock.now_s += total_s * share_spent

    left = [budget.left_for_s(phase) for phase in ("boundary", "search", "confirm", "baseline")]
    assert left == sorted(left)
    assert all(0 <= left_s <= total_s for left_s in left)
    allowed = [budget.allows(phase, expected_s) for phase in ("boundary", "search", "confirm")]
    assert allowed == sorted(allowed)
    assert budget.allows("prove", 1e9)


def test_the_search_leaves_time_to_confirm_what_it_found():
    """After two thirds of the time no search launch begins, but rounds may."""
    clock = Clock()
    budget = Budget(clock, 600.0, launches=10)
    clock.now_s += 400.0

    assert not budget.allows("search", 1.0)
    assert budget.allows("confirm", 100.0)
    assert not budget.allows("confirm", 300.0)
    assert budget.spent_s == 400.0


def test_the_time_of_an_earlier_run_counts():
    """What an earlier run spent on a launch counts, as if the run had not stopped."""
    clock = Clock()
    budget = Budget(clock, 600.0, launches=10)
    budget.record_launch("search", 250.0, earlier_s=300.0)
    clock.now_s += 50.0
    budget.record_launch("search", 50.0)

    assert budget.spent_s == 350.0
    assert budget.left_for_s("confirm") == 600.0 * 0.9 - 350.0


@given(st.floats(0, 60))
def test_an_early_proof_takes_no_time_from_earlier_phases(seconds):
    """A score before the rounds needs no time after them; the total is the same."""
    clock = Clock()
    budget = Budget(clock, 600.0, launches=10)
    left_s = budget.left_for_s("confirm")

    budget.record_launch("prove", seconds)
    clock.now_s += seconds

    assert budget.left_for_s("confirm") == pytest.approx(left_s)
    assert budget.left_for_s("prove") == pytest.approx(600.0 - seconds)


def test_the_used_share_is_that_of_time_or_launches():
    """It is the larger of the two, and 0 without limits."""
    clock = Clock()
    assert Budget(clock).share_used == 0.0

    budget = Budget(clock, 600.0, max_launches=40, launches=10)
    assert budget.share_used == 0.25
    clock.now_s += 180.0
    assert budget.share_used == pytest.approx(0.5)
    clock.now_s += 420.0
    assert budget.share_used == 1.0


def test_questions_are_counted_apart_from_own_computing():
    """The planner's seconds are its own; all others between two launches are autofit's."""
    ticks = iter([100.0, 107.5])
    usage = PlannerUsage(5, 50.0)
    timer = OverheadTimer(lambda: next(ticks), usage)
    usage.runs += 2
    usage.seconds += 3.0

    assert timer.overhead == Overhead(2, 3.0, 4.5)


def test_a_restarted_timer_counts_nothing_twice():
    """What was spent before a launch does not count for the next one."""
    ticks = itertools.count(100.0, 10.0)
    usage = PlannerUsage()
    timer = OverheadTimer(lambda: next(ticks), usage)
    usage.runs += 1
    usage.seconds += 1.0
    timer.restart()

    assert timer.overhead == Overhead(0, 0.0, 10.0)


def test_a_question_is_counted_even_when_it_fails():
    """It took its seconds, too."""
    usage = PlannerUsage()
    with pytest.raises(ZeroDivisionError), usage.counting():
        _ = 1 / 0

    assert usage.runs == 1
    assert usage.seconds >= 0


def test_a_budget_has_one_timer():
    """Both sides of a comparison share it, so that launches are no overhead."""
    usage = PlannerUsage()
    budget = Budget(lambda: 0.0, planner_usage=usage)

    assert budget.timer.usage is usage


def trial(number, phase, fidelity, seconds, overhead=None) -> Trial:
    """A launch of some seconds."""
    return Trial(
        number, purpose_of(phase), Candidate({}), Completed(), seconds=seconds, fidelity=fidelity,
        overhead=overhead,
    )  # fmt: skip


TRIALS = [
    trial(1, "baseline", "short", 10.0, Overhead(2, 0.5, 0.25)),
    trial(2, "search", "short", 8.0, Overhead(1, 0.25, 1.0)),
    trial(3, "search", "short", 9.04, Overhead(0, 0.0, 1.0)),
    trial(4, "boundary", "load", 5.0),
    trial(5, "prove", "full", 20.0),
]


def test_launches_are_counted_by_phase_and_fidelity():
    """The rows are in the order of the phases."""
    spent = spending(TRIALS, Overhead())["by_phase"]

    assert [tuple(row.values()) for row in spent] == [
        ("baseline", "short", 1, 10.0),
        ("boundary", "load", 1, 5.0),
        ("search", "short", 2, 17.0),
        ("prove", "full", 1, 20.0),
    ]


def test_every_fidelity_has_a_row():
    """Questions to the planner are no launches; the time after the last launch counts, too."""
    spent = spending(TRIALS, Overhead(3, 1.0, 0.5))

    assert spent["by_fidelity"] == {
        "estimate": {"questions": 6, "seconds": 1.8},
        "load": {"launches": 1, "seconds": 5.0},
        "short": {"launches": 3, "seconds": 27.0},
        "full": {"launches": 1, "seconds": 20.0},
    }
    assert spent["own_seconds"] == 2.8
    assert json.loads(json.dumps(spent)) == spent


def test_launches_without_a_fidelity_have_a_row():
    """Older versions recorded none; they count in their phase alone."""
    spent = spending([trial(1, "search", None, 7.0)], Overhead())

    assert spent["by_phase"] == [
        {"phase": "search", "fidelity": None, "launches": 1, "seconds": 7.0}
    ]
    assert not any(row.get("launches") for row in spent["by_fidelity"].values())


def test_a_stage_may_take_little_longer_than_the_budget() -> None:
    """Time limits of stages shrink with the budget; baseline and proof may take it once more."""
    now_s = [0.0]
    budget = Budget(lambda: now_s[0], total_s=600.0)
    limits = Limits(load_s=900.0, prompt_s=500.0)

    for spent_s, load_s in ((0.0, 660.0), (590.0, 70.0), (5000.0, 60.0)):
        now_s[0] = spent_s
        limited = limits.at_most(budget.stage_limit_s("search"))
        assert (limited.load_s, limited.prompt_s) == (load_s, min(500.0, load_s))
        for phase in ("baseline", "prove"):
            assert budget.stage_limit_s(phase) == 600.0 + max(0.0, 600.0 - spent_s)
    assert Budget(lambda: 0.0).stage_limit_s("search") == math.inf
