"""What is spent between two launches."""

from __future__ import annotations

import itertools

import pytest

from autofit.runtime.planner.planner import PlannerUsage
from autofit.session.budget import Budget
from autofit.session.overhead import Pause
from autofit.trial.trial import Preparation


def test_questions_are_told_apart_from_own_computing():
    """Seconds of the planner are its own, whatever else the pause took is autofit's."""
    ticks = iter([100.0, 107.5])
    asked = PlannerUsage(5, 50.0)
    pause = Pause(lambda: next(ticks), asked)
    asked.questions += 2
    asked.seconds += 3.0

    assert pause.spent == Preparation(2, 3.0, 4.5)


def test_a_launch_begins_another_pause():
    """What was spent before it is not told twice."""
    ticks = itertools.count(100.0, 10.0)
    asked = PlannerUsage()
    pause = Pause(lambda: next(ticks), asked)
    asked.questions += 1
    asked.seconds += 1.0
    pause.begin()

    assert pause.spent == Preparation(0, 0.0, 10.0)


def test_a_question_is_counted_even_when_it_fails():
    """It took its seconds all the same."""
    asked = PlannerUsage()
    with pytest.raises(ZeroDivisionError), asked.counting():
        _ = 1 / 0

    assert asked.questions == 1
    assert asked.seconds >= 0


def test_all_who_share_a_budget_share_the_pause():
    """Launches of the other side of a comparison are not own computing of this one."""
    asked = PlannerUsage()
    budget = Budget(lambda: 0.0, asked=asked)

    assert budget.pause.asked is asked
