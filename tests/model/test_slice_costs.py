"""The tensor split for a fixed number of host expert layers."""

from __future__ import annotations

import pytest

from autofit.model.placement.slice_costs import find_tensor_split
from autofit.model.sizes.inventory import read_inventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a model of twelve layers with experts of some 100 MiB."""
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    spec = SynthSpec(layers=12, experts=32, used=4, embd=1024, ff=1024, header_only=True)
    write_model(spec, path)
    return read_inventory(path)


def _devices(*sizes: float) -> tuple[Device, ...]:
    return tuple(Device(f"CUDA{i}", "", mib, mib) for i, mib in enumerate(sizes))


@pytest.mark.parametrize("count", [0, 3, 6, 12])
def test_slices_add_up_and_fit(model, count):
    """Units add up to those of the model, and the split fits if there is enough memory."""
    candidate = Candidate({"n_cpu_moe": count, "n_gpu_layers": model.units, "context": 1024})
    devices = _devices(4000, 4000)

    split = find_tensor_split(model, candidate, devices)

    assert sum(map(int, split.split(","))) == model.units
    assert estimate_memory(model, candidate.with_params(tensor_split=split), devices).fits


def test_moved_experts_leave_room_for_more_layers(model):
    """The first device gets more layers, because their experts are on the host."""
    candidate = Candidate({"n_cpu_moe": 6, "n_gpu_layers": model.units, "context": 1024})

    first, second = map(int, find_tensor_split(model, candidate, _devices(3000, 3000)).split(","))

    assert first > second


@pytest.mark.parametrize(
    "params",
    [{"split_mode": "none"}, {"tensor_split": "1,2"}, {"devices": "CUDA1"}, {"devices": "none"}],
)
def test_no_split_is_computed_where_none_is_needed(model, params):
    """There is no result for one device, another split mode, or a given split."""
    assert (
        find_tensor_split(model, Candidate({"n_cpu_moe": 3, **params}), _devices(900, 900)) is None
    )


def test_with_an_override_the_split_is_the_runtimes_own(model):
    """With a tensor override, the result is the runtime's own split in exact units."""
    candidate = Candidate({"override_tensor": r"blk\.3\.=CPU", "n_gpu_layers": model.units})

    split = find_tensor_split(model, candidate, _devices(2000, 1000))

    assert split is not None
    first, second = map(int, split.split(","))
    assert first + second == model.units
    assert first > second
