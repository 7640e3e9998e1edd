"""The memory of prefetch and expert caches, by the model's header."""

from __future__ import annotations

import pytest
from fakes.gguf_header import write_model
from fakes.synthetic_model import ModelShape, build_model

from autofit.model.sizes.inventory import read_inventory
from autofit.model.sizes.memory_estimate import apply_reported, estimate_memory
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.trial.measurement import ReportedMemory

SHAPE = ModelShape(layers=12, experts=64, used=4, embd=2048, ff=1024, vocab=2048)
LAYER_MIB = 216.0  # three expert tensors of 72 MiB


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a model of 12 layers."""
    path = tmp_path_factory.mktemp("experts") / "model.gguf"
    write_model(str(path), build_model(SHAPE))
    return read_inventory(path)


def row(model, **params):
    """Estimate the only device of a candidate with the experts of 5 of 12 layers in system RAM."""
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
def test_prefetch_by_slots_and_by_layer(model, params, mib):
    """A slot is as large as the largest expert tensor; prefetch by layer takes a whole layer."""
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
def test_an_expert_cache_is_limited_by_the_cached_layers(model, params, mib):
    """A layer with some experts on the device is not cached."""
    assert row(model, **params).expert_cache_mib == pytest.approx(mib)


def test_an_expert_cache_in_the_planners_context_is_not_counted_twice(model):
    """Builds with an expert cache report it as part of the context."""
    candidate = Candidate({"n_cpu_moe": 5, "context": 2048, "parallel": 1, "moe_cache_mib": 400})
    plain = estimate_memory(model, candidate, [Device("CUDA0", "", 8000.0, 8000.0)])
    (device,) = plain.devices
    for counted in (0.0, 400.0):
        reported = ReportedMemory(device.weights_mib, device.kv_mib + counted, device.compute_mib)
        assert apply_reported(plain, {"CUDA0": reported}).devices[0].total_mib == pytest.approx(
            device.total_mib
        )
