"""Remeasurements: their rounds, neighbours and context."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machine import Device, Machine
from fakes.machine_fixtures import FakeMachine
from fakes.synthetic_model import ModelShape, build_model
from session.simulated_launching import NO_ROOM, SimulatedLaunching
from session.task_sample import runner, task

from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.sweep.remeasure import (
    BEFORE,
    KEPT,
    RemeasuredSettings,
    RemeasuredSide,
    Remeasurement,
    neighbours,
)
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Completed, Crashed
from autofit.trial.workload import Request, Workload

WORKLOAD = Workload("sample", context=2048, parallel=1, requests=(Request(300, 16),))
MODEL = build_model(ModelShape(layers=8, experts=8, used=2, embd=512, ff=256, context=4096))
SETTINGS = Candidate({"context": 2048, "parallel": 1, "n_cpu_moe": 4})


@pytest.fixture
def about(tmp_path) -> Task:
    """Return a task on a fake machine."""
    fake = FakeMachine(tmp_path, Machine("remeasured", (Device("CUDA0"),)))
    return task(fake.write_model(MODEL), fake.server, WORKLOAD)


@pytest.fixture
def launching() -> SimulatedLaunching:
    """Return launches that all complete."""
    return SimulatedLaunching()


@pytest.fixture
def trials(about, launching, tmp_path) -> TrialRunner:
    """Return a runner of these launches."""
    return replace(runner(about, tmp_path / "study"), launching=launching)


def _remeasure(trials, *others: RemeasuredSide, rounds=5) -> tuple[dict, list[str]]:
    notes: list[str] = []
    remeasurement = Remeasurement(
        sides=[RemeasuredSide(KEPT, SETTINGS, trials, is_verbatim=False), *others],
        workload=WORKLOAD,
        slot_context=2048,
        rounds=rounds,
        asks=False,
        seed=1,
        note=notes.append,
    )
    return remeasurement.run(), notes


def test_every_side_has_its_fixed_rounds(trials):
    """Settings and old runtime take part in all rounds, neighbours in the first three."""
    old = Candidate({**SETTINGS.params, "ubatch": 256})
    kept = RemeasuredSide(KEPT, SETTINGS, trials, is_verbatim=False)

    found, notes = _remeasure(trials, replace(kept, name=BEFORE, candidate=old), *neighbours(kept))

    assert (found["rounds"], found["launches"], notes) == (5, 2 * 5 + 2 * 3, [])
    assert [len(found[side]["trials"]) for side in ("kept", "before")] == [5, 5]
    assert [one["name"] for one in found["neighbours"]] == ["n_cpu_moe=3", "n_cpu_moe=5"]
    assert [len(one["trials"]) for one in found["neighbours"]] == [3, 3]


def test_neighbour_that_fails_is_launched_once(trials, launching):
    """Its failure is in the result, and the other sides go on."""
    launching.outcome_of = lambda candidate, _: (
        NO_ROOM if candidate.get_int("n_cpu_moe", 0) == 3 else Completed()
    )
    kept = RemeasuredSide(KEPT, SETTINGS, trials, is_verbatim=False)

    found, _ = _remeasure(trials, *neighbours(kept))

    outcomes = {one["name"]: one["outcome"]["kind"] for one in found["neighbours"]}
    assert outcomes == {"n_cpu_moe=3": "out_of_memory", "n_cpu_moe=5": "completed"}
    assert found["launches"] == 5 + 1 + 3


def test_failure_of_the_settings_ends_the_rounds(trials, launching):
    """Without the settings there is nothing to measure."""
    launching.outcome_of = lambda *_: Crashed("load", "it died")

    found, _ = _remeasure(trials)

    assert (found["rounds"], found["kept"]["outcome"]["kind"]) == (1, "crashed")


def test_one_round_is_possible(trials):
    """Fewer rounds than a stopping rule needs are launched, too."""
    assert _remeasure(trials, rounds=1)[0]["launches"] == 1


@pytest.mark.parametrize(
    ("params", "expected"),
    [({"context": 2048, "parallel": 2}, 1024), ({"context": 0, "parallel": 2}, 2048), ({}, 2048)],
)
def test_slot_context_is_that_of_the_settings(about, params, expected):
    """With a context of 0 it is the context that the model was trained for."""
    settings = RemeasuredSettings((about,), Candidate(params), is_verbatim=True)

    assert settings.slot_context == expected
