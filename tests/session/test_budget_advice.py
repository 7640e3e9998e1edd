"""A budget that is too small for a machine is told while there is time to stop."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session.simulated_launching import SimulatedLaunching, measured
from session.task_sample import runner, task
from trial.purpose_sample import purpose_of
from tune.whole_tune import tune
from tune_machine import TuneMachine

from autofit.runtime.server.request_plan import plan_measurement
from autofit.search.space_file import read_workload
from autofit.session.budget import Budget, parse_duration_s
from autofit.session.budget_advice import first_shortage, launches_need, shortage, tune_need
from autofit.session.events import Notice
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Completed, OutOfMemory
from autofit.trial.trial import Trial
from autofit.trial.workload import Request, Workload

WORKLOAD = Workload("sample", 4096, 1, (Request(512, 64),))


def clock() -> float:
    """A clock that stands still."""
    return 0.0


def launch(seconds: float, request_s: float = 1.0, outcome=None) -> Trial:
    """A launch that took so long, with requests of so long."""
    request_plan = plan_measurement(WORKLOAD, 512, repeats=2)
    return Trial(
        number=1,
        purpose=purpose_of("baseline"),
        candidate=Candidate({}),
        outcome=outcome or Completed(),
        measurement=measured(request_plan, request_s),
        seconds=seconds,
    )


def told_budget_s(words: str) -> float:
    """The budget that is called sensible."""
    return parse_duration_s(re.search(r"a budget of (\S+) would be sensible", words)[1])


def test_too_little_time_is_told_in_launches_and_with_a_better_budget():
    """How many launches fit, how many a tune takes, and a budget that would do."""
    words = shortage(Budget(clock, 60.0), 14.0, tune_need(launch(14.0), WORKLOAD, 30))

    assert words == (
        "a launch takes about 14 s here, so the budget of 60 s allows about 4 launches; "
        "trying 3 candidates, confirming the best and proving it takes about 15, "
        "4 min in all: a budget of 6m would be sensible"
    )


def test_a_proof_that_goes_past_the_budget_is_told_beforehand():
    """Two requests of a full context may take longer than the whole budget."""
    need = tune_need(launch(14.0, request_s=30.0), WORKLOAD, 30)
    words = shortage(Budget(clock, 60.0), 14.0, need)

    assert need.proof_s > 46
    assert re.search(
        r"would be sensible; the proof at full context, .* takes \d+ \w+ or more", words
    )


@pytest.mark.parametrize(
    ("most", "launches", "purpose"),
    [
        (1, 4, "proving the baseline"),
        (2, 13, "trying 1 candidate, confirming the best and proving it"),
        (30, 15, "trying 3 candidates, confirming the best and proving it"),
        (None, 15, "trying 3 candidates, confirming the best and proving it"),
    ],
)
def test_fewer_launches_need_less(most, launches, purpose):
    """With --max-launches 1 there is nobody to confirm."""
    need = tune_need(launch(10.0), WORKLOAD, most)

    assert (need.least_launches, need.purpose) == (launches, purpose)
    assert need.least_s == pytest.approx(10.0 * launches)


@pytest.mark.parametrize(
    ("total_s", "told"), [(150.0, "150 s"), (120.0, "2 min"), (60.0, "60 s"), (90.5, "90.5 s")]
)
def test_the_budget_is_told_as_it_was_given(total_s, told):
    """What an estimate may round, a user knows better."""
    words = shortage(Budget(clock, total_s), 60.0, launches_need(60.0, 6, 12, "telling"))

    assert f"the budget of {told} allows" in words


def test_a_launch_longer_than_the_budget_is_told():
    """Not even a second launch is begun then."""
    words = shortage(Budget(clock, 60.0), 75.0, launches_need(75.0, 6, 12, "telling"))

    assert "allows no more than one launch" in words
    assert "a budget of 15m would be sensible" in words


@given(st.floats(0.1, 3000.0), st.floats(0.1, 600.0), st.integers(1, 40), st.floats(1, 1e5))
def test_the_sensible_budget_is_never_too_small_itself(seconds, request_s, most, total_s):
    """Who follows the advice is not advised again; slow prompts and few launches included."""
    need = tune_need(launch(seconds, request_s), WORKLOAD, most)
    words = shortage(Budget(clock, total_s), seconds, need)

    assert (words is None) == (total_s >= need.least_s)
    if words:
        assert told_budget_s(words) >= need.sensible_s >= need.least_s
        assert shortage(Budget(clock, told_budget_s(words)), seconds, need) is None


def test_a_full_context_counts_in_what_a_proof_takes():
    """Where a prompt of the whole context takes minutes, the short requests do not tell it."""
    slow, quick = (tune_need(launch(20.0, request_s), WORKLOAD, 30) for request_s in (60.0, 1.0))

    assert slow.least_s > 2 * quick.least_s


def test_without_a_budget_nothing_is_told():
    """There is nothing that could be too small."""
    assert shortage(Budget(clock), 1e6, tune_need(launch(1e6), WORKLOAD, None)) is None


def test_the_first_launch_that_completes_tells_it_and_no_other():
    """One that fails says nothing of how long launches take."""
    trials = [launch(1.0, outcome=OutOfMemory("load", "full")), launch(9.0), launch(9.0)]

    said = [
        first_shortage(
            trials[:count], Budget(clock, 10.0), lambda first: tune_need(first, WORKLOAD, 30)
        )
        for count in (1, 2, 3)
    ]

    assert [text is None for text in said] == [True, False, True]
    assert said[1].startswith("a launch takes about 9 s")


@pytest.mark.parametrize(("total_s", "is_told"), [(2.0, True), (3600.0, False)])
def test_a_tune_says_it_before_its_second_launch(tmp_path, total_s, is_told):
    """The notice stands behind the baseline, and in the notes of the result."""
    machine = TuneMachine(tmp_path, 2600.0)
    about = task(
        machine.model,
        machine.server,
        read_workload(str(machine.workload)),
        space=str(machine.space),
    )
    events: list[object] = []
    times = iter(range(1000))
    running = replace(
        runner(about, tmp_path / "study"),
        launching=SimulatedLaunching(),
        budget=Budget(clock, total_s, 3),
        emit=events.append,
        wall_clock=lambda: float(next(times)),
    )
    result = tune(about, running)

    notes = [note for note in result["notes"] if "would be sensible" in note]
    assert len(notes) == is_told
    if is_told:
        kinds = [type(event).__name__ for event in events[: events.index(Notice(notes[0]))]]
        assert kinds.count("LaunchEnded") == 1
