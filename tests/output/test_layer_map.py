"""The device of each layer, from params alone."""

from __future__ import annotations

import pytest

from autofit.output.layer_map import PlacedLayer, host_layers, layer_map
from autofit.trial.candidate import Candidate


def test_layers_that_are_not_offloaded_are_on_the_host():
    """If fewer units than all are offloaded, the first layers stay on the host."""
    placed = layer_map(Candidate({"devices": "CUDA0", "n_gpu_layers": 3, "n_cpu_moe": 3}), 4)

    assert placed == (
        PlacedLayer(0, "host", "in system RAM"),
        PlacedLayer(1, "host", "in system RAM"),
        PlacedLayer(2, "CUDA0", "in system RAM"),
        PlacedLayer(3, "CUDA0", "on the device"),
    )


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n_gpu_layers": 9},
        {"n_gpu_layers": 9, "devices": "CUDA0,CUDA1"},
        {"n_gpu_layers": 9, "devices": "CUDA0,CUDA1", "tensor_split": "a,b"},
        {"n_gpu_layers": 9, "devices": "CUDA0,CUDA1", "tensor_split": "0,0"},
    ],
)
def test_map_is_empty_if_the_runtime_decides(params):
    """Without devices and a valid split the place of layers is unknown."""
    assert layer_map(Candidate(params), 8) == ()


def test_two_devices_share_layers_by_their_split():
    """Units are split in order, the output with the last device."""
    placed = layer_map(
        Candidate({"devices": "CUDA0,CUDA1", "n_gpu_layers": 9, "tensor_split": "6,3"}), 8
    )

    assert [layer.device for layer in placed] == ["CUDA0"] * 6 + ["CUDA1"] * 2


@pytest.mark.parametrize(
    ("params", "layers", "expected"),
    [
        ({}, 8, None),
        ({"n_cpu_moe": 5}, None, 5),
        ({"n_cpu_moe": 99}, 8, 8),
        ({"n_cpu_ffn": 3}, 8, 3),
        ({"override_tensor": r"blk\.(1|2)\.ffn_(up|down|gate)_exps=CPU"}, 8, 2),
        ({"override_tensor": r"blk\.1\.ffn_up_exps=CPU", "n_cpu_moe": 1}, 8, 2),
        ({"override_tensor": "exps=CPU"}, None, None),
        ({"override_tensor": "^$=CPU"}, 8, 0),
        ({"override_tensor": "no rule"}, 8, 0),
        ({"devices": "CUDA0", "n_gpu_layers": 9}, 8, 0),
        ({"devices": "CUDA0", "n_gpu_layers": 99}, 8, 0),
        ({"devices": "CUDA0", "n_gpu_layers": 3}, 8, 6),
        ({"devices": "CUDA0", "n_gpu_layers": 3, "n_cpu_moe": 7}, 8, 7),
        ({"devices": "CUDA0", "n_gpu_layers": 3, "n_cpu_moe": 2}, 8, 6),
        ({"devices": "CUDA0", "n_gpu_layers": 3}, None, None),
        ({"devices": "none", "n_gpu_layers": 9}, 8, None),
        ({"n_gpu_layers": 0}, 8, None),
    ],
)
def test_host_layers_are_counted_from_every_param(params, layers, expected):
    """Each param that places experts in system RAM counts."""
    assert host_layers(Candidate(params), layers) == expected
