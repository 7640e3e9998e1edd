"""Where layers and tensors lie: by llama.cpp's published rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model.layout_samples import devices, handmade

from autofit.errors import UsageError
from autofit.model.placement.placed_layers import HOST, place, split_units
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.units import MIB

TWO = devices(12000, 7000)
SIX = handmade([30.0] * 6)


def units(params: dict, inventory=SIX, available=TWO) -> tuple[int, ...]:
    """The device of each unit for some params."""
    return place(inventory, Candidate(params), available).units


@pytest.mark.parametrize(
    ("split", "offloaded", "counts"),
    [
        ([3, 4], 7, [3, 4]),
        ([0.5, 0.5], 7, [4, 3]),
        ([16, 16, 17], 49, [16, 16, 17]),
        ([1, 1], 4, [2, 2]),
        ([30, 11], 41, [30, 11]),
        ([3, 0, 4], 7, [3, 0, 4]),
        ([0, 7], 7, [0, 7]),
        ([1, 2], 9, [3, 6]),
    ],
)
def test_units_go_to_the_devices_that_llama_cpp_gives_them(split, offloaded, counts):
    """Splits seen in the runtime's own placement lines come out the same."""
    placed = split_units(split, offloaded)
    assert [placed.count(device) for device in range(len(split))] == counts


@given(st.lists(st.integers(0, 80), min_size=1, max_size=16).filter(lambda c: sum(c) > 0))
def test_whole_numbers_that_add_up_to_the_units_land_exactly(counts):
    """A split of unit counts gives each device just that many, in order."""
    expected = [device for device, count in enumerate(counts) for _ in range(count)]
    assert list(split_units(counts, sum(counts))) == expected


@given(
    st.lists(st.floats(0, 1000, width=32), min_size=1, max_size=16).filter(lambda s: sum(s) > 1),
    st.integers(1, 200),
)
def test_the_rule_in_32_bit_floats(split, offloaded):
    """Every unit is on the first device whose running share is above its place."""
    shares, running = [], np.float32(0)
    for share in split:
        running = np.float32(running + np.float32(share))
        shares.append(running)
    shares = [np.float32(share / running) for share in shares]
    for unit, device in enumerate(split_units(split, offloaded)):
        at = np.float32(unit) / np.float32(offloaded)
        assert device == next(index for index, share in enumerate(shares) if share > at)


@pytest.mark.parametrize("layers", ["all", "auto", 999, 7, -1])
def test_all_layers_and_the_output_are_offloaded(layers):
    """Every way to say all of them means all of them."""
    assert units({"n_gpu_layers": layers, "tensor_split": "3,4"}) == (0, 0, 0, 1, 1, 1, 1)


def test_the_first_layers_stay_with_the_host():
    """Four of seven units leave three layers on the host; the output goes first of all."""
    assert units({"n_gpu_layers": 4, "tensor_split": "1,1"}) == (HOST,) * 3 + (0, 0, 1, 1)
    assert units({"n_gpu_layers": 1, "tensor_split": "1,1"}) == (HOST,) * 6 + (0,)
    assert units({"n_gpu_layers": 0}) == (HOST,) * 7
    assert units({"devices": "none"}) == (HOST,) * 7


def test_a_split_that_is_not_given_follows_the_memory():
    """Without a split the devices share by their usable memory; zeros count as none given."""
    assert units({}) == (0, 0, 0, 0, 0, 1, 1)
    assert units({"tensor_split": "0,0"}) == units({})
    assert units({}, available=devices(0, 0)) == (0, 0, 0, 0, 1, 1, 1)


def test_the_order_of_devices_is_the_candidates():
    """Splits belong to devices in the order in which the candidate names them."""
    placed = place(SIX, Candidate({"devices": "CUDA1,CUDA0", "tensor_split": "1,6"}), TWO)
    assert [device.name for device in placed.devices] == ["CUDA1", "CUDA0"]
    assert placed.units == (0,) + (1,) * 6
    assert placed.layers_on(0) == (0, 0)
    assert placed.layers_on(1) == (1, 5)


def test_superfluous_shares_are_ignored_and_missing_ones_are_zero():
    """A split for more devices than there are is cut, one for fewer leaves the rest empty."""
    assert units({"tensor_split": "3,4,9"}) == units({"tensor_split": "3,4"})
    assert set(units({"tensor_split": "1"})) == {0}


def test_one_device_takes_all_without_a_split():
    """Split mode none puts everything on the main device."""
    params = {"split_mode": "none", "main_gpu": 1, "tensor_split": "6,1"}
    placed = place(SIX, Candidate(params), TWO)
    assert [device.name for device in placed.devices] == ["CUDA1"]
    assert placed.units == (0,) * 7


def test_blocks_for_prediction_count_as_units_but_weigh_nothing():
    """A model with one such block has a unit more, and loads nothing of it."""
    plain, more = handmade([30.0] * 6), handmade([30.0] * 7, nextn=1)
    on_one = Candidate({"devices": "CUDA0"})
    assert len(place(more, on_one, TWO).units) == 8
    assert place(more, on_one, TWO).weights == place(plain, on_one, TWO).weights


def test_host_experts_count_leading_dense_layers():
    """With two dense layers first, three layers' experts are one layer's."""
    model = handmade([0.0, 0.0, 30.0, 30.0, 30.0])
    assert place(model, Candidate({"n_cpu_moe": 2}), TWO).host_expert_blocks == ()
    assert place(model, Candidate({"n_cpu_moe": 3}), TWO).host_expert_blocks == (2,)


def test_the_first_rule_that_matches_wins():
    """An override before `n_cpu_moe` exempts what it names."""
    params = {"override_tensor": r"blk\.0\.ffn_down_exps=CUDA1", "n_cpu_moe": 2}
    placed = place(SIX, Candidate({**params, "tensor_split": "7,0"}), TWO)
    assert placed.experts[0] == (HOST, 1)
    assert placed.experts[1] == (HOST,)
    assert placed.weights[1] == 10 * MIB


def test_dense_layers_give_up_their_feed_forward():
    """`n_cpu_ffn` moves the FFN of the first layers and leaves their attention."""
    model = handmade([0.0] * 4, dense_mib=24.0)
    placed = place(model, Candidate({"devices": "CUDA0", "n_cpu_ffn": 3}), TWO)
    assert placed.host_ffn_blocks == (0, 1, 2)
    assert placed.weights[HOST] == (3 * 24 + 20) * MIB
    assert placed.weights[0] == (4 * 10 + 24 + 20) * MIB


def test_a_remote_buffer_is_told_by_its_endpoint():
    """Device RPC1 has a buffer named by its server, where it is number 0."""
    remote = devices(9000, 9000, backend="RPC")
    rule = r"blk\.0\.ffn_(up|down|gate)_exps=RPC0[10.0.0.1:50052]"
    placed = place(SIX, Candidate({"override_tensor": rule, "tensor_split": "7,0"}), remote)
    assert placed.experts[0] == (1,)


@pytest.mark.parametrize(
    "params",
    [
        {"devices": "CUDA7"},
        {"override_tensor": "exps=CUDA7"},
        {"override_tensor": "exps"},
        {"override_tensor": "(exps=CPU"},
        {"override_tensor": "exps=RPC0[10.9.9.9:1]"},
        {"tensor_split": "a,b"},
    ],
)
def test_what_is_not_there_is_a_users_fault(params):
    """A name, rule or number that cannot be meant ends with a hint."""
    with pytest.raises(UsageError) as fault:
        place(SIX, Candidate(params), TWO)
    assert fault.value.hint or "tensor_split" in fault.value.message


@given(
    st.lists(st.sampled_from([0.0, 12.0, 30.0]), min_size=1, max_size=8),
    st.integers(0, 9),
    st.integers(0, 9),
    st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(lambda s: sum(s) > 0),
)
def test_no_byte_is_lost_or_counted_twice(experts, host_layers, offloaded, split):
    """Weights over all places are those of the model, whatever goes where."""
    model = handmade(experts)
    available = tuple(Device(f"CUDA{i}", "", 9000, 9000) for i in range(len(split)))
    params = {
        "n_cpu_moe": host_layers,
        "n_gpu_layers": offloaded,
        "tensor_split": ",".join(map(str, split)),
    }
    placed = place(model, Candidate(params), available)
    expected = model.embedding_bytes + model.output_bytes
    expected += sum(block.total_bytes for block in model.blocks)
    assert expected <= sum(placed.weights.values()) <= expected + 128 * 4 * len(experts) + 256
