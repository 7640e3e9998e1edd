"""What prefetch and expert caches take, by the model's header."""

from __future__ import annotations

import pytest
from fakes.gguf_header import write_model
from fakes.synthetic_model import ModelShape, build_model

from autofit.model.sizes.inventory import inventory
from autofit.model.sizes.memory_estimate import estimate_memory, with_reported
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.trial.measurement import ReportedMemory

SHAPE = ModelShape(layers=12, experts=64, used=4, embd=2048, ff=1024, vocab=2048)
LAYER_MIB = 216.0  # three expert tensors of 72 MiB


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of 12 layers."""
    path = tmp_path_factory.mktemp("experts") / "model.gguf"
    write_model(str(path), build_model(SHAPE))
    return inventory(path)


def row(model, **params):
    """The only device of a candidate with 5 of 12 layers' experts in system RAM."""
    candidate = Candidate({"n_cpu_moe": 5, "context": 2048, "parallel": 1, **params})
    return estimate_memory(model, candidate, [Device("CUDA0", "", 8000.0, 8000.0)]).devices[0]


@pytest.mark.parametrize(
    ("params", "mib"),
    [
        ({"prefetch_slots": 3}, 3 * 72.0),
        ({"prefetch_slots": 0}, 0.0),
        ({"prefetch_weights": True}, LAYER_MIB),
        ({"prefetch_weights": "on"}, LAYER_MIB),
        ({"prefetch_weights": False}, 0.0),
    ],
)
def test_prefetch_takes_slots_or_a_layers_experts(model, params, mib):
    """Slots as large as the largest expert tensor; by layer all of one layer."""
    assert row(model, **params).prefetch_mib == mib
    assert row(model, **params).other_mib == pytest.approx(row(model).other_mib + mib)


@pytest.mark.parametrize(
    ("params", "mib"),
    [
        ({"moe_cache_mib": 400}, 400.0),
        ({"moe_cache_mib": 9000}, 5 * LAYER_MIB),
        ({"moe_cache_slots": 16}, 5 * LAYER_MIB / 4),
        ({"moe_cache_mib": 400, "n_cpu_moe": 0}, 0.0),
        ({"moe_cache_mib": 9000, "n_cpu_moe": 0,
          "override_tensor": r"blk\.[0-4]\.ffn_(up|gate)_exps=CPU"}, 0.0),
    ],
)  # fmt: skip
def test_a_cache_takes_no_more_than_the_layers_that_it_can_hold(model, params, mib):
    """A layer with some of its experts on the device is not cached."""
    assert row(model, **params).expert_cache_mib == pytest.approx(mib)


def test_a_cache_that_the_planner_counts_is_not_counted_twice(model):
    """Builds with a cache tell of it as part of the context."""
    candidate = Candidate({"n_cpu_moe": 5, "context": 2048, "parallel": 1, "moe_cache_mib": 400})
    plain = estimate_memory(model, candidate, [Device("CUDA0", "", 8000.0, 8000.0)])
    (device,) = plain.devices
    for counted in (0.0, 400.0):
        told = ReportedMemory(device.weights_mib, device.kv_mib + counted, device.compute_mib)
        assert with_reported(plain, {"CUDA0": told}).devices[0].total_mib == pytest.approx(
            device.total_mib
        )
