"""A search space laid over a model and its devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session.task_sample import task
from trial.purpose_sample import purpose_of
from tune_machine import TuneMachine

from autofit.memory.store import MemoryStore
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Space
from autofit.search.space_file import read_workload
from autofit.session.candidates import CandidateFactory
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

SIZES = (2600.0, 2300.0)


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> TuneMachine:
    """Two cards that the model does not fit."""
    return TuneMachine(tmp_path_factory.mktemp("candidates"), *SIZES)


@pytest.fixture(scope="module")
def about(machine):
    """What is known of the task, with the whole space for mixtures of experts."""
    workload = read_workload(str(machine.workload))
    return task(machine.model, machine.server, workload, space="moe")


@pytest.fixture(scope="module")
def maker(about) -> CandidateFactory:
    """By arithmetic alone."""
    return CandidateFactory(about)


def points(maker: CandidateFactory):
    """Any combination of the space's values, layouts and host layers."""
    problem = maker.problem()
    return st.fixed_dictionaries(
        {axis.name: st.sampled_from(axis.values) for axis in problem.axes}
    )


@given(data=st.data())
@settings(deadline=None)
def test_a_point_becomes_its_candidate(maker, about, data):
    """Values, task and placement are as the point says; what is refused has no candidate."""
    point = data.draw(points(maker))
    candidate = maker.candidate_of(point)

    if candidate is None:
        return
    assert about.space.allows(point)
    params = candidate.params
    assert {params["context"], params["parallel"]} == {2048, 1}
    assert params["cache_type_k"] == params["cache_type_v"] == point["cache_type"]
    assert params["ubatch"] == point["ubatch"]
    estimate = maker.estimate(candidate)
    assert sum(d.host_expert_layers for d in estimate.devices) == point[HOST_LAYERS_AXIS]
    if str(point[LAYOUT_AXIS]).startswith("single:"):
        assert params["devices"] == str(point[LAYOUT_AXIS]).removeprefix("single:")


@given(data=st.data())
@settings(deadline=None)
def test_more_host_layers_never_take_more_of_the_tightest_device(maker, data):
    """With one device alone, the margin grows with each layer that leaves it.

    None of them has the pipeline that is on where nothing is on the host.
    """
    point = {**data.draw(points(maker)), LAYOUT_AXIS: "single:CUDA0"}
    walk = [maker.candidate_of({**point, HOST_LAYERS_AXIS: n}) for n in range(1, 13)]
    margins = [maker.fit_of(candidate).margin_mib for candidate in walk if candidate is not None]

    assert margins == sorted(margins)


def test_threads_and_a_larger_batch_take_no_memory(maker):
    """Such points share one estimate, so that thousands are judged quickly."""
    start = {LAYOUT_AXIS: "single:CUDA0", HOST_LAYERS_AXIS: 6,
             **next(maker.problem().space.points())}  # fmt: skip
    base = maker.candidate_of(start)

    for changes in ({"threads": 7}, {"batch": 16384}, {"threads_batch": 3}):
        other = base.with_params(**changes)
        assert maker.fit_of(other) == maker.fit_of(base)
    assert maker.fit_of(base.with_params(ubatch=256)) != maker.fit_of(base)


@pytest.mark.parametrize(
    ("wanted", "devices", "names"),
    [
        (("balanced", "single"), 2, ("balanced", "single:CUDA0", "single:CUDA1")),
        (("balanced", "capacity"), 2, ("balanced", "capacity")),
        (("balanced", "capacity"), 1, ("single:CUDA0",)),
        ((), 2, ()),
        (("balanced",), 0, ()),
    ],
)
def test_layouts_are_for_the_devices_that_there_are(about, wanted, devices, names):
    """One device has one layout, none has none."""
    asked = replace(
        about, devices=about.devices[:devices], space=replace(about.space, layouts=wanted)
    )

    assert CandidateFactory(asked).layout_names() == names


def test_without_a_device_nothing_is_estimated(about):
    """Host memory alone rules nothing out."""
    maker = CandidateFactory(replace(about, devices=()))

    assert maker.estimate(Candidate({"context": 2048})) is None
    assert maker.fit_of(Candidate({"context": 2048})) is None


def test_what_the_runtime_cannot_be_told_is_no_candidate(about):
    """A combination that it refuses."""
    axes = (Axis("flash_attn", ("on", "off")), Axis("cache_type_v", ("f16", "q8_0")))
    maker = CandidateFactory(replace(about, devices=(), space=Space("any", "any", axes)))

    fine = maker.candidate_of({"flash_attn": "on", "cache_type_v": "q8_0"})
    assert fine.params["cache_type_v"] == "q8_0"
    assert maker.candidate_of({"flash_attn": "off", "cache_type_v": "q8_0"}) is None


def test_the_planner_corrects_the_arithmetic(about, machine):
    """What the runtime's own planner says of one candidate moves the estimates of others."""
    plain, asking = CandidateFactory(about), CandidateFactory(about, make_planner(about))
    start = {LAYOUT_AXIS: "single:CUDA0", HOST_LAYERS_AXIS: 6,
             **next(plain.problem().space.points())}  # fmt: skip
    asked, other = (plain.candidate_of({**start, HOST_LAYERS_AXIS: layers}) for layers in (6, 8))
    asking.ask_planner(asked)

    told = asking.estimator.estimate(asked)["CUDA0"]
    found = asking.estimate(asked).device("CUDA0")
    assert found.weights_mib + found.kv_mib + found.compute_mib == pytest.approx(
        told.model_mib + told.context_mib + told.compute_mib, rel=0.03
    )
    assert asking.fit_of(other) != plain.fit_of(other)
    assert machine.launches == 0


def test_a_launch_corrects_what_no_buffer_shows(about, tmp_path):
    """What a device's counter showed beyond the buffers counts for all, in later studies too."""
    maker = CandidateFactory(about)
    start = {LAYOUT_AXIS: "single:CUDA0", HOST_LAYERS_AXIS: 6,
             **next(maker.problem().space.points())}  # fmt: skip
    launched, other = (
        maker.candidate_of({**start, HOST_LAYERS_AXIS: layers}) for layers in (6, 8)
    )
    before = maker.estimate(launched).device("CUDA0")
    wanted = before.total_mib + 100.0
    trial = Trial(
        1, purpose_of("search"), launched, Completed(),
        measurement=Measurement(
            peak_mib={"CUDA0": 50.0 + wanted},
            reported={"CUDA0": reported(before)},
            readings=(MemoryReading(0.0, {"CUDA0": 50.0}, {"CUDA0": 2000.0}),),
        ),
    )  # fmt: skip
    old = maker.fit_of(other).margin_mib
    maker.learn_from(trial)
    store = MemoryStore(tmp_path / "memory.jsonl")
    CandidateFactory(about, store=store).learn_from(trial)
    later = CandidateFactory(about, store=MemoryStore(tmp_path / "memory.jsonl"))

    assert later.fit_of(other).margin_mib == pytest.approx(old - 100.0, abs=20)
    assert maker.estimate(launched).device("CUDA0").total_mib == pytest.approx(wanted, abs=5)
    assert maker.fit_of(other).margin_mib == pytest.approx(old - 100.0, abs=20)


def reported(row):
    """What the runtime would say of a device."""
    return ReportedMemory(row.weights_mib, row.kv_mib, row.compute_mib)


def test_a_short_launch_teaches_what_a_full_context_takes(about):
    """What pools still grow by is added to what was taken; a launch that filled it adds none."""
    long = replace(about, workload=replace(about.workload, context=1 << 20))
    params = {"devices": "CUDA0", "n_gpu_layers": 13, "n_cpu_moe": 8, "context": 1 << 20,
              "cache_type_k": "q8_0", "cache_type_v": "q8_0"}  # fmt: skip
    candidate = Candidate(params)
    margins = []
    for depth in (1000, 1 << 20):
        learning = CandidateFactory(long)
        plain = learning.estimate(candidate).devices[0]
        row = ReportedMemory(plain.weights_mib, plain.kv_mib, plain.compute_mib)
        measured = Measurement(
            (Sample(depth, 1.0, 1.0, 8, 1.0, depth=depth),),
            peak_mib={"CUDA0": plain.total_mib},
            reported={"CUDA0": row},
            readings=(MemoryReading(0.0, {"CUDA0": 0.0}, {"CUDA0": 2600.0}),),
        )
        learning.learn_from(
            Trial(1, purpose_of("search"), candidate, Completed(), measurement=measured)
        )
        margins.append(learning.fit_of(candidate).margin_mib)

    shorter, filled = margins
    assert filled == pytest.approx(plain.free_mib)
    assert filled - shorter == pytest.approx(learning.growth_mib(candidate, depth=1008)["CUDA0"])
    assert filled > shorter


def test_little_room_for_a_full_context_is_to_be_seen(maker, about):
    """A narrower cache is widened for long prompts, so it wants more room than f16."""
    params = {"devices": "CUDA0", "n_gpu_layers": 13, "n_cpu_moe": 8, "context": 1 << 20}
    wide = maker.fill(Candidate({**params, "cache_type_k": "f16", "cache_type_v": "f16"}))
    narrow = maker.fill(Candidate({**params, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}))

    assert narrow.below_mib["CUDA0"] > wide.below_mib["CUDA0"] > 0
    assert wide.expected_mib.keys() == wide.below_mib.keys() == {"CUDA0"}
    assert wide.request.prompt_tokens < about.workload.context


def test_a_generation_that_a_short_launch_leaves_out_fills_nothing(about):
    """The workload's long answers are not generated, so all that they would fill still grows."""
    params = {"devices": "CUDA0", "n_gpu_layers": 13, "n_cpu_moe": 8, "context": 1 << 20,
              "cache_type_k": "q8_0", "cache_type_v": "q8_0"}  # fmt: skip
    wanted = []
    for predicted in (8, 60000):
        workload = replace(about.workload, context=1 << 20, requests=(Request(512, predicted),))
        fill = CandidateFactory(replace(about, workload=workload)).fill(Candidate(params))
        wanted.append(fill.below_mib["CUDA0"])

    assert wanted[0] == wanted[1]


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
def test_a_launch_that_failed_teaches_nothing_of_memory(about, tmp_path, outcome):
    """Its peak is not what it takes: not here, nor in later studies."""
    store = MemoryStore(tmp_path / "memory.jsonl")
    maker = CandidateFactory(about, store=store)
    candidate = about.baseline.with_params(devices="CUDA0", n_gpu_layers=13, n_cpu_moe=6)
    before = maker.estimate(candidate)
    measured = Measurement(
        peak_mib={"CUDA0": before.device("CUDA0").total_mib - 500.0},
        reported={"CUDA0": reported(before.device("CUDA0"))},
        readings=(MemoryReading(0.0, {"CUDA0": 0.0}, {"CUDA0": 2600.0}),),
    )

    maker.learn_from(Trial(1, purpose_of("search"), candidate, outcome, measurement=measured))

    assert maker.estimate(candidate) == before
    assert CandidateFactory(about, store=store).estimate(candidate) == before


def test_launches_that_tell_nothing_change_nothing(maker, about):
    """Those without measurement or counters."""
    candidate = about.baseline.with_params(devices="CUDA0", n_gpu_layers=13, n_cpu_moe=6)
    before = maker.fit_of(candidate)
    for measurement in (None, Measurement()):
        maker.learn_from(
            Trial(1, purpose_of("search"), candidate, Completed(), measurement=measurement)
        )

    assert maker.fit_of(candidate) == before


def test_a_pinned_placement_keeps_the_devices_that_were_named(machine):
    """Candidates of a space without layouts say which devices, in order, and all their layers."""
    workload = read_workload(str(machine.workload))
    options = {
        "space": "moe",
        "devices_mib": {"CUDA1": 2300.0, "CUDA0": 2600.0},
        "pins": {"n_cpu_moe": 9},
    }
    pinned = CandidateFactory(task(machine.model, machine.server, workload, **options))
    candidate = pinned.candidate_of(next(pinned.problem().space.points()))

    assert candidate.params["devices"] == "CUDA1,CUDA0"
    assert candidate.params["n_gpu_layers"] == pinned.task.inventory.units
    assert candidate.params["n_cpu_moe"] == 9
    assert [row.name for row in pinned.estimate(candidate).devices] == ["CUDA1", "CUDA0"]
