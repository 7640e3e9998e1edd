"""Trials are launched one by one, numbered, written, and never repeated."""

from __future__ import annotations

import itertools

import pytest
from session.simulated_launching import NO_ROOM, SimulatedLaunching
from study.study_sample import WORKLOAD, header
from trial.purpose_sample import purpose_of

from autofit.errors import AutofitError
from autofit.runtime.planner.planner import PlannerUsage
from autofit.runtime.server.request_plan import (
    plan_fit_test,
    plan_measurement,
    plan_without_measurement,
)
from autofit.session.budget import Budget, spending
from autofit.session.events import LaunchEnded, LaunchStarted, StageStarted
from autofit.session.runner import TrialRunner, resume_hint
from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Completed, OutOfMemory, Rejected, Spilled
from autofit.trial.trial import Overhead

CANDIDATE = Candidate({"n_cpu_moe": 3})
LAUNCH_S = 2.5


@pytest.fixture
def make(tmp_path):
    """A function that makes runners of one study, as resumed runs do."""

    def of(launching: SimulatedLaunching | None = None, **fields) -> TrialRunner:
        path = tmp_path / "study"
        is_there = (path / "study.json").exists()
        study = Study.resume(path, header()) if is_there else Study.create(path, header())
        launching = launching or SimulatedLaunching()
        return TrialRunner(
            study=study,
            launching=launching,
            budget=fields.pop("budget", None) or Budget(lambda: LAUNCH_S * len(launching.made)),
            emit=fields.pop("emit", lambda _: None),
            wall_clock=fields.pop("wall_clock", lambda: 1000.0),
            **fields,
        )

    return of


def run(runner: TrialRunner, candidate=CANDIDATE, phase="search", request_plan=None, **purpose):
    """One trial."""
    return runner.run(
        purpose_of(phase, **purpose),
        candidate,
        request_plan or plan_without_measurement(),
        layout="balanced",
    )


def test_a_trial_is_written_before_its_event(make):
    """At the event of its end, the trial is on the disk as it is returned."""
    events = []

    def emit(event) -> None:
        events.append(event)
        if isinstance(event, LaunchEnded):
            assert Study.open(runner.study.path).trials() == (event.trial,)

    runner = make(emit=emit)
    trial = run(runner)

    assert [type(event) for event in events] == [LaunchStarted, *[StageStarted] * 3, LaunchEnded]
    assert (trial.number, trial.phase, trial.layout, trial.purpose.role) == (
        1, "search", "balanced", "explore",
    )  # fmt: skip
    assert (trial.argv, dict(trial.env)) == (
        ("server", "--port", "{port}"),
        {"VERBATIM": "0"},
    )
    assert (trial.started_at, trial.seconds) == (1000.0, LAUNCH_S)
    assert trial.notes == ("a note",)
    assert runner.budget.launches == 1


@pytest.mark.parametrize(
    ("phase", "as_served"),
    [("baseline", False), ("boundary", False), ("search", False), ("confirm", True),
     ("prove", True)],
)  # fmt: skip
def test_rounds_and_proofs_launch_as_served(make, phase, as_served):
    """They leave out the switches that only measuring needs."""
    launching = SimulatedLaunching()
    run(make(launching), phase=phase)

    assert launching.served == [as_served]


def test_an_unsupported_setting_is_a_trial_without_a_launch(make):
    """The refusal is written to the study."""
    launching = SimulatedLaunching()
    runner = make(launching)
    trial = run(runner, Candidate({"unknown": 1}))

    assert trial.outcome.kind == "rejected"
    assert launching.made == []
    assert runner.study.started() == ()
    assert [kept.outcome.kind for kept in runner.study.trials()] == ["rejected"]


def test_a_resumed_run_repeats_no_launch(make):
    """A known launch of the same role, round and side is taken as often as it is there."""
    first = make()
    known = [run(first), run(first), run(first, side="B"), run(first, phase="confirm")]
    first.study.close()

    launching = SimulatedLaunching()
    events = []
    again = make(launching, emit=events.append)
    assert again.is_known(purpose_of("boundary", reason="why"), CANDIDATE)
    found = [run(again), run(again), run(again, side="B"), run(again, phase="confirm")]

    assert found == known
    assert launching.made == []
    assert all(event.is_reused for event in events if isinstance(event, LaunchEnded))
    assert again.budget.launches == 3
    assert run(again).number == 5
    assert len(launching.made) == 1


@pytest.mark.parametrize("step_s", [7200.0, -7200.0, 0.25, 1e9])
def test_a_clock_that_is_set_changes_no_duration(make, step_s):
    """The wall clock is set during every launch; durations and the budget are as without it."""
    wall = itertools.count(1e9, step_s)
    runner = make(wall_clock=lambda: next(wall))
    trials = [run(runner), run(runner, side="B")]

    assert [trial.seconds for trial in trials] == [LAUNCH_S, LAUNCH_S]
    assert runner.budget.spent_s == 2 * LAUNCH_S
    runner.study.close()
    again = make(wall_clock=lambda: next(wall))
    run(again), run(again, side="B")
    assert again.budget.spent_s == 2 * LAUNCH_S


def test_the_spending_of_a_resumed_run_adds_up_to_its_time(make):
    """The overhead of an earlier run's launches counts, too."""
    clock = itertools.count(0.0, 1.0)
    budget = Budget(lambda: next(clock))
    first = make(budget=budget)
    earlier = [run(first), run(first, side="B")]
    first.study.close()
    assert all(trial.overhead.own_s > 0 for trial in earlier)

    budget = Budget(lambda: next(clock))
    again = make(budget=budget)
    assert again.untaken_s == sum(trial.spent_s for trial in earlier)
    run(again), run(again, side="B"), run(again, phase="confirm")
    spent = spending(again.trials, budget.timer.overhead)

    launches_s = sum(row["seconds"] for row in spent["by_phase"])
    # Each look at this clock takes a second.
    assert budget.spent_s == pytest.approx(launches_s + spent["own_seconds"], abs=4.0)
    assert budget.spent_s - launches_s > sum(trial.overhead.own_s for trial in earlier)


@pytest.mark.parametrize(
    ("phase", "outcome", "has_advice"),
    [
        ("boundary", NO_ROOM, False),
        ("search", NO_ROOM, False),
        ("search", Spilled("prompt", "shared memory", "CUDA0"), False),
        ("prove", NO_ROOM, True),
        ("baseline", NO_ROOM, True),
        ("search", OutOfMemory("load", "cgroup", "host"), True),
        ("boundary", Rejected("load", "bad magic", "model_file"), True),
    ],
)
def test_an_expected_lack_of_device_memory_has_no_advice(make, phase, outcome, has_advice):
    """A search expects it; other failures have advice."""
    trial = run(make(SimulatedLaunching(outcome_of=lambda *_: outcome)), phase=phase)

    assert trial.notes == (*("raise n_cpu_moe by 1",) * has_advice, "a note")


@pytest.mark.parametrize("asked", ["load", "short"])
def test_a_known_trial_must_have_measured_enough(make, asked):
    """A test of fit has no speed, but a measured candidate is known to fit."""
    efforts = {
        "load": plan_fit_test(WORKLOAD, 512),
        "short": plan_measurement(WORKLOAD, 512, repeats=1, is_short=True),
    }
    other = "short" if asked == "load" else "load"
    first = make()
    known = run(first, request_plan=efforts[other])
    first.study.close()
    assert known.fidelity == other
    launching = SimulatedLaunching()
    again = make(launching)
    found = run(again, request_plan=efforts[asked])

    assert (found == known) is (asked == "load")
    assert len(launching.made) == (asked == "short")


def test_a_known_failure_is_not_measured(make):
    """A failure of a test of fit counts for a measurement, too."""
    first = make(SimulatedLaunching(outcome_of=lambda *_: NO_ROOM))
    known = run(first, request_plan=plan_fit_test(WORKLOAD, 512))
    first.study.close()
    again = make()

    assert run(again, request_plan=plan_measurement(WORKLOAD, 512, repeats=1)) == known


def test_a_trial_has_the_overhead_before_it(make):
    """It has the questions and own computing since the launch before."""
    clock = iter([0.0, 0.0, 7.0, 7.0, 20.0, 20.0, 22.0, 22.0, 30.0, 30.0])
    asked = PlannerUsage()
    runner = make(budget=Budget(lambda: next(clock), planner_usage=asked))
    asked.runs, asked.seconds = 2, 3.0
    first, second = run(runner), run(runner, side="B", phase="confirm")

    assert first.overhead == Overhead(2, 3.0, 4.0)
    assert second.overhead == Overhead(0, 0.0, 2.0)
    assert runner.study.trials() == (first, second)


def test_a_failure_is_not_launched_again(make):
    """It is taken from the study, too."""
    first = make(SimulatedLaunching(outcome_of=lambda *_: NO_ROOM))
    run(first)
    first.study.close()
    launching = SimulatedLaunching()

    assert run(make(launching)).outcome == NO_ROOM
    assert launching.made == []


def test_a_stop_leaves_no_trial_of_the_launch_under_way(make):
    """The trials before it stay, and its number is not used again."""

    def stop(*_):
        raise KeyboardInterrupt

    first = make()
    run(first)
    first.study.close()
    runner = make(SimulatedLaunching(outcome_of=stop))
    run(runner)
    with pytest.raises(KeyboardInterrupt):
        run(runner)

    assert [trial.number for trial in runner.study.trials()] == [1]
    assert runner.study.started() == (1, 2)
    runner.study.close()
    assert make().study.cut_off() == ()


def test_an_error_of_the_run_leaves_no_trial(make):
    """A full disk or a missing program is no outcome of a candidate."""

    def fail(*_):
        raise AutofitError("the disk is full")

    runner = make(SimulatedLaunching(outcome_of=fail))
    with pytest.raises(AutofitError):
        run(runner)
    assert runner.study.trials() == ()
    assert list(runner.study.path.glob("trials/*.running")) == []


def test_the_hint_quotes_the_folder(tmp_path):
    """A folder with a blank can be pasted."""
    with Study.create(tmp_path / "my study", header()) as study:
        assert f"--study '{tmp_path}/my study' --resume" in resume_hint(study)


def _refusing(make, *outcomes):
    """A runner whose launches have these outcomes, in order."""
    left = iter(outcomes)
    return make(SimulatedLaunching(lambda *_: next(left)))


NO_FLAG = Rejected("plan", "error: invalid argument: --bogus", "unknown_flag")
NO_CONTEXT = Rejected("load", "context 65536 was asked, the runtime applied 32768", "not_applied")


@pytest.mark.parametrize("refusal", [NO_FLAG, NO_CONTEXT])
def test_a_run_ends_if_every_launch_is_refused(make, refusal):
    """The trials are kept, and a resumed run ends at once."""
    runner = _refusing(make, refusal, refusal, refusal)
    run(runner, Candidate({}), phase="baseline")
    run(runner, phase="boundary")

    with pytest.raises(AutofitError) as caught:
        run(runner, Candidate({"n_cpu_moe": 4}), phase="boundary")

    assert refusal.evidence in caught.value.message
    assert "raise n_cpu_moe by 1" in caught.value.hint  # the advice on a refusal
    assert [trial.outcome for trial in runner.study.trials()] == [refusal] * 3
    runner.study.close()
    again = make()
    run(again, Candidate({}), phase="baseline")
    run(again, phase="boundary")
    with pytest.raises(AutofitError, match="the runtime refuses every launch"):
        run(again, Candidate({"n_cpu_moe": 4}), phase="boundary")
    assert again.launching.made == []


@pytest.mark.parametrize(
    ("first", "outcomes"),
    [
        ("baseline", (NO_FLAG, NO_CONTEXT, NO_FLAG)),
        ("baseline", (NO_FLAG, NO_FLAG, NO_ROOM)),
        ("baseline", (Completed(), NO_FLAG, NO_FLAG)),
        ("boundary", (NO_FLAG, NO_FLAG, NO_FLAG)),
    ],
)
def test_a_run_continues_if_another_launch_may_be_accepted(make, first, outcomes):
    """It has another text, another outcome, or no baseline."""
    runner = _refusing(make, *outcomes)
    for number, phase in enumerate((first, "boundary", "boundary")):
        run(runner, Candidate({"n_cpu_moe": number}), phase=phase)

    assert len(runner.trials) == 3
