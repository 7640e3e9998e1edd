"""Points of a search space become candidates on the devices of a task."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session.task_sample import problem_of, task
from tune_machine import TuneMachine

from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Space
from autofit.search.space_file import read_workload
from autofit.session.candidate_factory import CandidateFactory

SIZES = (2600.0, 2300.0)


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> TuneMachine:
    """Two cards that the model does not fit."""
    return TuneMachine(tmp_path_factory.mktemp("candidates"), *SIZES)


@pytest.fixture(scope="module")
def about(machine):
    """The task with the whole space for mixtures of experts."""
    workload = read_workload(str(machine.workload))
    return task(machine.model, machine.server, workload, space="moe")


@pytest.fixture(scope="module")
def memory(about):
    """Predictions by arithmetic alone."""
    return about.memory_model()


@pytest.fixture(scope="module")
def problem(about, memory) -> Problem:
    """The search problem with these predictions."""
    return problem_of(about, memory)


def points(problem: Problem):
    """Draw any combination of the space's values, layouts and host layers."""
    return st.fixed_dictionaries(
        {axis.name: st.sampled_from(axis.values) for axis in problem.axes}
    )


@given(data=st.data())
@settings(deadline=None)
def test_point_becomes_its_candidate(problem, memory, about, data):
    """Values, task and placement are those of the point; a refused point has no candidate."""
    point = data.draw(points(problem))
    candidate = problem.candidate_of(point)

    if candidate is None:
        return
    assert about.space.allows(point)
    params = candidate.params
    assert {params["context"], params["parallel"]} == {2048, 1}
    assert params["cache_type_k"] == params["cache_type_v"] == point["cache_type"]
    assert params["ubatch"] == point["ubatch"]
    predicted = memory.predict(candidate)
    assert sum(d.host_expert_layers for d in predicted.devices) == point[HOST_LAYERS_AXIS]
    if str(point[LAYOUT_AXIS]).startswith("single:"):
        assert params["devices"] == str(point[LAYOUT_AXIS]).removeprefix("single:")


@given(data=st.data())
@settings(deadline=None)
def test_more_host_layers_never_lower_the_margin_of_one_device(problem, data):
    """The margin grows with each layer that leaves the device.

    Without any host layer there is a pipeline, which needs more, so the walk starts at 1.
    """
    point = {**data.draw(points(problem)), LAYOUT_AXIS: "single:CUDA0"}
    walk = [problem.candidate_of({**point, HOST_LAYERS_AXIS: n}) for n in range(1, 13)]
    margins = [problem.fit_of(one).margin_mib for one in walk if one is not None]

    assert margins == sorted(margins)


def test_threads_and_a_larger_batch_need_no_memory(problem):
    """Such points share one prediction, so that thousands are judged quickly."""
    start = {LAYOUT_AXIS: "single:CUDA0", HOST_LAYERS_AXIS: 6, **next(problem.space.points())}
    base = problem.candidate_of(start)

    for changes in ({"threads": 7}, {"batch": 16384}, {"threads_batch": 3}):
        assert problem.fit_of(base.with_params(**changes)) == problem.fit_of(base)
    assert problem.fit_of(base.with_params(ubatch=256)) != problem.fit_of(base)


@pytest.mark.parametrize(
    ("layouts", "devices", "names"),
    [
        (("balanced", "single"), 2, ("balanced", "single:CUDA0", "single:CUDA1")),
        (("balanced", "capacity"), 2, ("balanced", "capacity")),
        (("balanced", "capacity"), 1, ("single:CUDA0",)),
        ((), 2, ()),
        (("balanced",), 0, ()),
    ],
)
def test_layouts_are_those_of_the_devices(about, layouts, devices, names):
    """One device has one layout, no device has none."""
    asked = replace(
        about, devices=about.devices[:devices], space=replace(about.space, layouts=layouts)
    )

    assert CandidateFactory(asked).layout_names() == names


def test_combination_that_the_runtime_refuses_has_no_candidate(about):
    """The dialect knows it, so no launch is needed."""
    axes = (Axis("flash_attn", ("on", "off")), Axis("cache_type_v", ("f16", "q8_0")))
    factory = CandidateFactory(replace(about, devices=(), space=Space("any", "any", axes)))

    fine = factory.candidate_of({"flash_attn": "on", "cache_type_v": "q8_0"})
    assert fine.params["cache_type_v"] == "q8_0"
    assert factory.candidate_of({"flash_attn": "off", "cache_type_v": "q8_0"}) is None


def test_pinned_placement_keeps_the_named_devices(machine):
    """Candidates of a space without layouts name the devices in order, and all their layers."""
    pinned = task(
        machine.model,
        machine.server,
        read_workload(str(machine.workload)),
        space="moe",
        devices_mib={"CUDA1": 2300.0, "CUDA0": 2600.0},
        pins={"n_cpu_moe": 9},
    )
    candidate = CandidateFactory(pinned).candidate_of(next(pinned.space.points()))

    assert candidate.params["devices"] == "CUDA1,CUDA0"
    assert candidate.params["n_gpu_layers"] == pinned.inventory.units
    assert candidate.params["n_cpu_moe"] == 9
    predicted = pinned.memory_model().predict(candidate)
    assert [row.name for row in predicted.devices] == ["CUDA1", "CUDA0"]


def test_layouts_of_unequal_links_come_in_both_orders(about):
    """The device with the faster link comes first in the second order."""
    first, second = about.devices
    unequal = (replace(first, link_gb_s=3.0), replace(second, link_gb_s=24.0))
    names = CandidateFactory(replace(about, devices=unequal)).layout_names()

    assert set(CandidateFactory(about).layout_names()) < set(names)
    assert {"balanced:CUDA1,CUDA0", "capacity:CUDA1,CUDA0", "first_device:CUDA1,CUDA0"} < set(
        names
    )
    chosen = replace(about, devices=unequal, chooses_devices=True)
    assert CandidateFactory(chosen).layout_names() == CandidateFactory(about).layout_names()


def test_layers_are_divided_only_where_the_model_has_room_as_a_whole(about):
    """Large local devices of one kind may have a part of every layer, and then nothing else."""
    large = tuple(replace(device, usable_mib=20000.0) for device in about.devices)
    roomy = replace(about, devices=large)
    mixed = replace(roomy, devices=(large[0], replace(large[1], name="Vulkan0")))
    pinned = replace(roomy, space=replace(about.space, pinned={"split_mode": "layer"}))

    assert "tensor" in CandidateFactory(roomy).layout_names()
    tight = replace(about, devices=tuple(replace(d, usable_mib=1200.0) for d in about.devices))
    for other in (tight, mixed, pinned):
        assert "tensor" not in CandidateFactory(other).layout_names()

    problem = problem_of(roomy)
    point = {LAYOUT_AXIS: "tensor", HOST_LAYERS_AXIS: 0, **next(problem.space.points())}
    assert problem.candidate_of(point).params["split_mode"] == "tensor"
    assert problem.candidate_of({**point, HOST_LAYERS_AXIS: 1}) is None
