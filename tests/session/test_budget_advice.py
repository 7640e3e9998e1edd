"""A warning about a budget that is too small, while there is time to stop."""

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
    """A clock that is always at 0."""
    return 0.0


def launch(seconds: float, request_s: float = 1.0, outcome=None) -> Trial:
    """A launch that took some seconds, with requests of some seconds."""
    request_plan = plan_measurement(WORKLOAD, 512, repeats=2)
    return Trial(
        number=1,
        purpose=purpose_of("baseline"),
        candidate=Candidate({}),
        outcome=outcome or Completed(),
        measurement=measured(request_plan, request_s),
        seconds=seconds,
    )


def advised_budget_s(text: str) -> float:
    """The budget that a warning advises."""
    return parse_duration_s(re.search(r"use --budget ([^\s:]+)", text)[1])


def test_a_small_budget_has_a_warning_with_a_better_one():
    """It has the launches that are possible, those that a tune takes, and a better budget."""
    text = shortage(Budget(clock, 60.0), 14.0, tune_need(launch(14.0), WORKLOAD, 30))

    assert "--budget 6m:" in text
    assert "takes 14 s" in text
    assert "about 4 launches" in text
    assert "takes 15 to try 3 candidates" in text


def test_a_proof_longer_than_the_budget_is_in_the_warning():
    """Two requests of a full context may take longer than the whole budget."""
    need = tune_need(launch(14.0, request_s=30.0), WORKLOAD, 30)
    text = shortage(Budget(clock, 60.0), 14.0, need)

    assert need.proof_s > 46
    assert re.search(r"the proof alone takes \d+ \w+, whatever the budget", text)


@pytest.mark.parametrize(
    ("most", "launches", "purpose"),
    [
        (1, 4, "to prove the baseline"),
        (2, 13, "to try 1 candidate and prove the best"),
        (30, 15, "to try 3 candidates and prove the best"),
        (None, 15, "to try 3 candidates and prove the best"),
    ],
)
def test_fewer_launches_need_less(most, launches, purpose):
    """With --max-launches 1 there are no rounds."""
    need = tune_need(launch(10.0), WORKLOAD, most)

    assert (need.least_launches, need.purpose) == (launches, purpose)
    assert need.least_s == pytest.approx(10.0 * launches)


@pytest.mark.parametrize(
    ("total_s", "written"), [(150.0, "150 s"), (120.0, "2 min"), (60.0, "60 s"), (90.5, "90.5 s")]
)
def test_the_budget_is_written_as_it_was_given(total_s, written):
    """Only estimates are rounded."""
    text = shortage(Budget(clock, total_s), 60.0, launches_need(60.0, 6, 12, "to compare"))

    assert f"so {written} is enough" in text


def test_a_launch_longer_than_the_budget_has_a_warning():
    """No second launch begins then."""
    text = shortage(Budget(clock, 60.0), 75.0, launches_need(75.0, 6, 12, "to compare"))

    assert "is enough for 1 launch," in text
    assert "use --budget 15m:" in text


@given(st.floats(0.1, 3000.0), st.floats(0.1, 600.0), st.integers(1, 40), st.floats(1, 1e5))
def test_the_advised_budget_is_large_enough(seconds, request_s, most, total_s):
    """With it there is no warning, also with slow prompts and few launches."""
    need = tune_need(launch(seconds, request_s), WORKLOAD, most)
    text = shortage(Budget(clock, total_s), seconds, need)

    assert (text is None) == (total_s >= need.least_s)
    if text:
        assert advised_budget_s(text) >= need.usual_s >= need.least_s
        assert shortage(Budget(clock, advised_budget_s(text)), seconds, need) is None


def test_a_full_context_counts_in_what_a_proof_takes():
    """A prompt of the whole context may take minutes although the requests are short."""
    slow, quick = (tune_need(launch(20.0, request_s), WORKLOAD, 30) for request_s in (60.0, 1.0))

    assert slow.least_s > 2 * quick.least_s


def test_there_is_no_warning_without_a_budget():
    """No time limit is too small."""
    assert shortage(Budget(clock), 1e6, tune_need(launch(1e6), WORKLOAD, None)) is None


def test_only_the_first_completed_launch_has_the_warning():
    """A failed launch does not show how long launches take."""
    trials = [launch(1.0, outcome=OutOfMemory("load", "full")), launch(9.0), launch(9.0)]

    said = [
        first_shortage(
            trials[:count], Budget(clock, 10.0), lambda first: tune_need(first, WORKLOAD, 30)
        )
        for count in (1, 2, 3)
    ]

    assert [text is None for text in said] == [True, False, True]
    assert "a launch takes 9 s" in said[1]


@pytest.mark.parametrize(("total_s", "is_warned"), [(2.0, True), (3600.0, False)])
def test_a_tune_warns_before_its_second_launch(tmp_path, total_s, is_warned):
    """The notice comes after the baseline, and is in the notes of the result."""
    machine = TuneMachine(tmp_path, 2600.0)
    about = task(
        machine.model,
        machine.server,
        read_workload(str(machine.workload)),
        space=str(machine.space),
    )
    events: list[object] = []
    launching = SimulatedLaunching()
    running = replace(
        runner(about, tmp_path / "study"),
        launching=launching,
        budget=Budget(lambda: float(len(launching.made)), total_s, 3),
        emit=events.append,
    )
    result = tune(about, running)

    notes = [note for note in result["notes"] if "use --budget" in note]
    assert len(notes) == is_warned
    if is_warned:
        kinds = [type(event).__name__ for event in events[: events.index(Notice(notes[0]))]]
        assert kinds.count("LaunchEnded") == 1
