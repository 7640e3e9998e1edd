"""Devices, search space and baseline of a task."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_headers import MODELS
from runtime.sample_programs import SERVER, runtime_of
from session.task_sample import task
from tune_machine import TuneMachine

from autofit.errors import NothingFitsError, UsageError
from autofit.model.sizes.inventory import read_inventory
from autofit.search.space import Axis, Constraint, Space
from autofit.search.space_file import read_workload
from autofit.session.task import FIT_MARGIN_MIB, fitted_space, usable_devices
from autofit.trial.device import Device

FOUND = (Device("CUDA0", "one", 12000, 11000), Device("CUDA1", "two", 8000, 7500))
SPACE = Space(
    "any",
    "any",
    (
        Axis("ubatch", (512, 2048)),
        Axis("batch", (1024, 4096)),
        Axis("cache_type", ("f16", "q8_0", "q4_0"), ("cache_type_k", "cache_type_v")),
        Axis("prefetch_slots", (0, 3)),
    ),
    layouts=("balanced",),
    constraints=(Constraint("ubatch", "<=", "batch"),),
)


@pytest.fixture(scope="module")
def runtime():
    """A current llama-server."""
    return runtime_of("llama_server", SERVER)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A mixture of experts and a dense model."""
    folder = tmp_path_factory.mktemp("models")
    return {
        name: read_inventory(MODELS[name]().write(folder / f"{name}.gguf"))
        for name in ("qwen3moe", "llama_8b")
    }


@pytest.fixture
def fitted(runtime, models):
    """Fits the space to the mixture of experts."""

    def of(space: Space = SPACE, *, kv_floor: str = "q8_0", model: str = "qwen3moe", **pins):
        return fitted_space(space, runtime, models[model], kv_floor=kv_floor, pins=pins)

    return of


def values(space: Space) -> dict:
    """The values of each axis."""
    return {axis.name: axis.values for axis in space.axes}


@given(st.permutations(["CUDA0", "CUDA1"]), st.floats(1, 1e5), st.floats(1, 1e5))
def test_devices_are_used_in_the_order_given(names, first, second):
    """They have the sizes that the user gave."""
    lent = dict(zip(names, (first, second), strict=True))
    found = usable_devices(FOUND, lent)

    assert [device.name for device in found] == names
    assert [device.usable_mib for device in found] == [first, second]
    assert {device.description for device in found} == {"one", "two"}


def test_without_names_all_devices_are_used():
    """They are in the order of the runtime."""
    assert usable_devices(FOUND, {}) == FOUND


def test_a_device_without_a_limit_has_all_its_free_memory():
    """A name alone uses what is free, and needs a device that exists."""
    found = usable_devices(FOUND, {"CUDA1": None, "CUDA0": 5.0})

    assert [device.usable_mib for device in found] == [FOUND[1].usable_mib, 5.0]
    with pytest.raises(UsageError, match="no device ROCm0") as caught:
        usable_devices(FOUND, {"ROCm0": None}, allow_missing=True)
    assert "--device ROCm0=" in caught.value.hint


def test_a_missing_device_is_refused_or_allowed():
    """A tune needs the device, a plan does not."""
    with pytest.raises(UsageError, match="no device ROCm0") as caught:
        usable_devices(FOUND, {"ROCm0": 100.0})
    (imagined,) = usable_devices(FOUND, {"ROCm0": 100.0}, allow_missing=True)

    assert "CUDA0 (one), CUDA1 (two)" in caught.value.hint
    assert (imagined.name, imagined.usable_mib) == ("ROCm0", 100.0)


def test_a_space_keeps_what_runtime_and_floor_allow(fitted):
    """No KV type below the floor, no parameter that the program lacks."""
    assert values(fitted()) == {
        "ubatch": (512, 2048),
        "batch": (1024, 4096),
        "cache_type": ("f16", "q8_0"),
    }
    assert values(fitted(kv_floor="q4_0"))["cache_type"] == ("f16", "q8_0", "q4_0")


def test_a_floor_above_all_values_leaves_nothing(fitted):
    """The message names the parameter, its values and the floor."""
    with pytest.raises(NothingFitsError, match="no value of cache_type") as caught:
        fitted(kv_floor="f32")
    assert "f16, q8_0, q4_0; the KV floor is f32" in caught.value.hint


def test_a_misspelt_parameter_leads_to_the_right_one(fitted):
    """The hint also lists all that the runtime has."""
    with pytest.raises(UsageError, match="ubach: llama_server has no such") as caught:
        fitted(ubach=512)
    assert caught.value.hint.startswith("did you mean ubatch? it has: ")


def test_prefetch_is_for_experts_only(runtime, models):
    """A dense model has nothing to prefetch, even where the program could."""
    able = runtime_of(
        "llama_server_prefetch_slots", "llama-server-prefetch-fork-b9862",
        more_help="  --prefetch-experts-slots N   slots\n",
    )  # fmt: skip
    moe, dense = (
        fitted_space(SPACE, able, models[name], kv_floor="q8_0", pins={})
        for name in ("qwen3moe", "llama_8b")
    )

    assert moe.axis("prefetch_slots").values == (0, 3)
    assert dense.axis("prefetch_slots") is None


def test_a_pinned_parameter_is_no_longer_searched(fitted):
    """It is in every candidate, and need not be among the values of the space."""
    space = fitted(ubatch=777)

    assert space.axis("ubatch") is None
    assert dict(space.pinned) == {"ubatch": 777}
    assert all(space.params_of(point)["ubatch"] == 777 for point in space.points())
    assert space.layouts == ("balanced",)


def test_a_pinned_axis_sets_all_its_parameters(fitted):
    """`cache_type` is K and V."""
    assert dict(fitted(cache_type="q8_0").pinned) == {
        "cache_type_k": "q8_0",
        "cache_type_v": "q8_0",
    }


def test_a_pinned_placement_ends_the_walk_over_layouts(fitted):
    """A user who places layers does not have them searched."""
    assert fitted(n_cpu_moe=3).layouts == ()


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"nonesuch": 1}, "no such parameter"),
        ({"prefetch_slots": 3}, "no such parameter"),
        ({"cache_type": "q9_9"}, "accepts f32, f16"),
        ({"ubatch": "many"}, "must be a whole number"),
        ({"context": 1}, "the task sets this"),
        ({"parallel": 1}, "the task sets this"),
        ({"ubatch": 9999}, "ubatch <= batch"),
    ],
)
def test_an_impossible_pin_is_refused(fitted, pins, words):
    """Unknown parameters, values and combinations."""
    with pytest.raises(UsageError, match=words) as caught:
        fitted(**pins)
    assert caught.value.hint or "accepts" in words


def test_an_unknown_floor_is_refused(fitted):
    """The hint lists the KV types."""
    with pytest.raises(UsageError, match="--kv-floor q3 is not a KV type"):
        fitted(kv_floor="q3")


@pytest.fixture(scope="module")
def about(tmp_path_factory):
    """Two cards and a model."""
    machine = TuneMachine(tmp_path_factory.mktemp("task"), 2600.0, 2300.0)
    workload = read_workload(str(machine.workload))
    return task(machine.model, machine.server, workload, space=str(machine.space))


def test_the_baseline_is_the_runtimes_own_choice(about):
    """It has no setting but those of the task."""
    assert dict(about.baseline.params) == {"context": 2048, "parallel": 1}
    assert about.limits_mib == {}


def test_the_runtimes_own_fit_keeps_the_users_limits(about):
    """It leaves free the memory beyond the limit, and its usual margin."""
    devices = tuple(replace(d, usable_mib=d.usable_mib - 300) for d in reversed(about.devices))
    lent = replace(about, devices=devices, chooses_devices=True)

    params = lent.baseline.params
    assert params["devices"] == "CUDA1,CUDA0"
    assert params["fit_target"] == f"{300 + FIT_MARGIN_MIB},{300 + FIT_MARGIN_MIB}"
    assert dict(lent.limits_mib) == {d.name: d.usable_mib for d in devices}


def test_the_users_own_command_runs_the_task(about):
    """Its settings count, its context and slots do not."""
    own = replace(about, baseline_params={"n_gpu_layers": 5, "context": 9, "parallel": 4})

    assert dict(own.baseline.params) == {"n_gpu_layers": 5, "context": 2048, "parallel": 1}
