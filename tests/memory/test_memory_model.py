"""The memory model predicts by arithmetic, planner and observed launches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory.launched_card import OTHERS_MIB, TOTAL_MIB, UNREPORTED_MIB, LaunchedCard
from session.task_sample import problem_of, task
from trial.purpose_sample import purpose_of
from tune_machine import TuneMachine

from autofit.memory.calibration import CalibrationStore
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS
from autofit.search.space_file import read_workload
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.task import Task
from autofit.session.task_setup import make_planner
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement, MemoryReading, ReportedMemory, Sample
from autofit.trial.outcome import (
    Completed,
    Crashed,
    OutOfMemory,
    Rejected,
    Spilled,
    TimedOut,
)
from autofit.trial.trial import Trial
from autofit.trial.workload import Request

# A context that a short prompt does not fill, on one device.
LONG = {"devices": "CUDA0", "n_gpu_layers": 13, "n_cpu_moe": 8, "context": 1 << 20,
        "cache_type_k": "q8_0", "cache_type_v": "q8_0"}  # fmt: skip


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> TuneMachine:
    """Two cards that the model does not fit."""
    return TuneMachine(tmp_path_factory.mktemp("memory"), 2600.0, 2300.0)


@pytest.fixture(scope="module")
def about(machine) -> Task:
    """The task with the whole space for mixtures of experts."""
    workload = read_workload(str(machine.workload))
    return task(machine.model, machine.server, workload, space="moe")


@pytest.fixture(scope="module")
def card(tmp_path_factory) -> LaunchedCard:
    """A card of 8000 MiB."""
    return LaunchedCard.of(tmp_path_factory.mktemp("card"))


def on_first_card(about: Task, host_layers: int) -> Candidate:
    """Return a candidate on the first card alone."""
    point = {LAYOUT_AXIS: "single:CUDA0", HOST_LAYERS_AXIS: host_layers}
    candidate = CandidateFactory(about).candidate_of({**point, **next(about.space.points())})
    assert candidate is not None
    return candidate


def reported(row) -> ReportedMemory:
    """Return the runtime's report of a device with the predicted buffers."""
    return ReportedMemory(row.weights_mib, row.kv_mib, row.compute_mib)


def launched(
    candidate: Candidate, used_mib: float, row: ReportedMemory, *, outcome=None, samples=()
) -> Trial:
    """Return a launch that raised the used memory of the first card by this much."""
    measured = Measurement(
        samples,
        peak_mib={"CUDA0": 50.0 + used_mib},
        reported={"CUDA0": row},
        readings=(MemoryReading(0.0, {"CUDA0": 50.0}, {"CUDA0": 2600.0}),),
    )
    return Trial(1, purpose_of("search"), candidate, outcome or Completed(), measurement=measured)


def test_without_a_device_nothing_is_predicted(about):
    """Host memory alone rules nothing out."""
    candidate = Candidate({"context": 2048})

    assert replace(about, devices=()).memory_model().predict(candidate) is None


def test_planner_corrects_the_arithmetic(about, machine):
    """The runtime's own plan of one candidate moves the predictions of others."""
    plain, asking = about.memory_model(), about.memory_model(make_planner(about))
    asked, other = on_first_card(about, 6), on_first_card(about, 8)
    asking.ask_planner(asked)

    planned = asking.planner.predict_memory(asked)["CUDA0"]
    found = asking.predict(asked).device("CUDA0")
    assert found.weights_mib + found.kv_mib + found.compute_mib == pytest.approx(
        planned.buffers_mib, rel=0.03
    )
    assert asking.predict(other) != plain.predict(other)
    assert machine.launches == 0


def test_launch_corrects_memory_beyond_buffers(about, tmp_path):
    """The counted use beyond the buffers counts for all candidates, in later studies too."""
    store = CalibrationStore(tmp_path / "memory.jsonl")
    memory = about.memory_model(store=store)
    seen, other = on_first_card(about, 6), on_first_card(about, 8)
    before, old = memory.predict(seen).device("CUDA0"), memory.predict(other).device("CUDA0")

    memory.observe(launched(seen, before.total_mib + 100.0, reported(before)))
    later = about.memory_model(store=CalibrationStore(tmp_path / "memory.jsonl"))

    assert memory.predict(seen).device("CUDA0").total_mib == pytest.approx(
        before.total_mib + 100.0, abs=5
    )
    for model in (memory, later):
        free = model.predict(other).device("CUDA0").free_mib
        assert free == pytest.approx(old.free_mib - 100.0, abs=20)


def test_short_launch_shows_the_use_of_a_full_context(about):
    """The later growth of pools is added; a launch that filled the context adds none."""
    long = replace(about, workload=replace(about.workload, context=1 << 20))
    candidate = Candidate(LONG)
    free = []
    for depth in (1000, 1 << 20):
        memory = long.memory_model()
        row = memory.predict(candidate).devices[0]
        samples = (Sample(depth, 1.0, 1.0, 8, 1.0, depth=depth),)
        memory.observe(launched(candidate, row.total_mib, reported(row), samples=samples))
        free.append(memory.predict(candidate).devices[0].free_mib)

    shorter, filled = free
    assert filled == pytest.approx(row.free_mib)
    assert filled - shorter == pytest.approx(memory.growth_mib(candidate, depth=1008)["CUDA0"])
    assert filled > shorter


@pytest.mark.parametrize(
    "outcome",
    [
        OutOfMemory("context", "cudaMalloc failed", "device", "compute", "CUDA0"),
        OutOfMemory("prompt", "CUDA error", "device", "pool", "CUDA0"),
        Spilled("prompt", "full", "CUDA0"),
        Crashed("prompt", "SIGSEGV"),
        TimedOut("prompt", "no token within 600 s"),
        Rejected("load", "context 4096 was asked", "not_applied"),
    ],
    ids=lambda outcome: outcome.kind,
)
def test_failed_launch_corrects_nothing(about, tmp_path, outcome):
    """Its peak is not its whole use: not in this study, nor in later ones."""
    store = CalibrationStore(tmp_path / "memory.jsonl")
    memory = about.memory_model(store=store)
    candidate = on_first_card(about, 6)
    before = memory.predict(candidate)
    row = before.device("CUDA0")

    memory.observe(launched(candidate, row.total_mib - 500.0, reported(row), outcome=outcome))

    assert memory.predict(candidate) == before
    assert about.memory_model(store=store).predict(candidate) == before


def test_baseline_corrects_nothing(about):
    """The runtime placed its layers, so its prediction may be for another placement."""
    memory = about.memory_model()
    candidate = on_first_card(about, 6)
    before = memory.predict(candidate)
    row = before.device("CUDA0")
    trial = launched(candidate, row.total_mib + 500.0, reported(row))

    memory.observe(replace(trial, purpose=purpose_of("baseline")))

    assert memory.predict(candidate) == before
    assert len(memory.launches) == 1


@pytest.mark.parametrize("measurement", [None, Measurement()])
def test_launch_without_counters_corrects_nothing(about, measurement):
    """Neither without a measurement nor without a report of the runtime."""
    memory = about.memory_model()
    candidate = on_first_card(about, 6)
    before = memory.predict(candidate)

    memory.observe(Trial(1, purpose_of("search"), candidate, Completed(), measurement=measurement))

    assert memory.predict(candidate) == before


def test_context_is_filled_where_little_would_stay_free(about):
    """A narrow cache is widened for long prompts, so it needs more room than f16."""
    memory = about.memory_model()
    wide = memory.full_context_check(
        Candidate({**LONG, "cache_type_k": "f16", "cache_type_v": "f16"})
    )
    narrow = memory.full_context_check(Candidate(LONG))

    assert narrow.below_mib["CUDA0"] > wide.below_mib["CUDA0"] > 0
    assert wide.expected_mib.keys() == wide.below_mib.keys() == {"CUDA0"}
    assert wide.request.prompt_tokens < about.workload.context


def test_long_generation_does_not_lower_the_level_of_a_fill(about):
    """A short launch leaves the workload's long answers out, so pools still grow for them."""
    levels = []
    for predicted in (8, 60000):
        workload = replace(about.workload, context=1 << 20, requests=(Request(512, predicted),))
        fill = replace(about, workload=workload).memory_model().full_context_check(Candidate(LONG))
        levels.append(fill.below_mib["CUDA0"])

    assert levels[0] == levels[1]


def test_memory_beyond_buffers_is_learned_by_settings(card):
    """The same settings use the same, others at least that less a possible difference."""
    memory = card.memory(card.trial(20, 5000), card.trial(19, 5400))
    same, other = card.candidate(10), card.candidate(10, "f16")

    assert memory.unreported_mib(same) == {"CUDA0": UNREPORTED_MIB}
    assert 0 <= memory.unreported_mib(other)["CUDA0"] < UNREPORTED_MIB
    assert memory.unreported_mib(other.with_params(prefetch_slots=4)) == {}


def test_launch_during_which_others_took_memory_is_no_measure(card):
    """What it used beyond its buffers cannot be known."""
    disturbed = card.trial(20, 5000, others_after_mib=1400.0)

    assert "CUDA0" not in card.memory(disturbed).unreported_mib(disturbed.candidate)


def test_free_memory_is_predicted_from_the_nearest_launch(card):
    """Only the difference between two candidates is predicted."""
    memory = card.memory(card.trial(20, 5000), card.trial(10, 7000))
    here = card.candidate(9)
    rows = [memory.predict(card.candidate(n)).devices[0] for n in (9, 10)]
    free_mib = TOTAL_MIB - OTHERS_MIB - 7000 - UNREPORTED_MIB

    assert memory.free_mib(here) == pytest.approx(free_mib + rows[1].total_mib - rows[0].total_mib)
    unused = card.memory()
    assert unused.free_mib(here) == pytest.approx(unused.predict(here).devices[0].free_mib)


def test_failure_with_predicted_room_shows_the_least_error(card):
    """A device that was full in spite of predicted free memory lacks at least that much."""
    memory = card.memory()
    failed = card.trial(20, 5000, outcome=OutOfMemory("prompt", "full", device="CUDA0"))
    free_mib = memory.free_mib(failed.candidate)

    assert free_mib > 0
    assert memory.excess_mib([failed]) == pytest.approx(free_mib + 1.0)
    assert memory.excess_mib([card.trial(20, 5000)]) == 0.0


def test_margins_of_the_search_follow_the_model(about):
    """A launch that used more than predicted lowers the margin of every candidate."""
    memory = about.memory_model()
    problem = problem_of(about, memory)
    seen, other = on_first_card(about, 6), on_first_card(about, 8)
    row, before = memory.predict(seen).device("CUDA0"), problem.fit_of(other)

    memory.observe(launched(seen, row.total_mib + 100.0, reported(row)))

    after = problem.fit_of(other)
    assert after.margin_mib == pytest.approx(before.margin_mib - 100.0, abs=20)
    assert after.host_margin_mib == before.host_margin_mib
