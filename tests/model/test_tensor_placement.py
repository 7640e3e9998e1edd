"""The places of layers and tensors, compared with llama.cpp's rules."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model.layout_samples import devices, handmade

from autofit.errors import UsageError
from autofit.model.sizes.tensor_placement import (
    HOST,
    NO_PIPELINE_RULE,
    dense_pattern,
    expert_pattern,
    place_tensors,
    read_overrides,
    split_units,
)
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.units import MIB

TWO = devices(12000, 7000)
SIX = handmade([30.0] * 6)


def units(params: dict, inventory=SIX, available=TWO) -> tuple[int, ...]:
    """Return the place of each unit for some params."""
    return place_tensors(inventory, Candidate(params), available).units


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
def test_units_are_split_like_in_llama_cpp(split, offloaded, counts):
    """Splits give the placement that the runtime's log shows."""
    placed = split_units(split, offloaded)
    assert [placed.count(device) for device in range(len(split))] == counts


@given(st.lists(st.integers(0, 80), min_size=1, max_size=16).filter(lambda c: sum(c) > 0))
def test_a_split_of_unit_counts_is_exact(counts):
    """A split of unit counts gives each device exactly its count, in order."""
    expected = [device for device, count in enumerate(counts) for _ in range(count)]
    assert list(split_units(counts, sum(counts))) == expected


@given(
    st.lists(st.floats(0, 1000, width=32), min_size=1, max_size=16).filter(lambda s: sum(s) > 1),
    st.integers(1, 200),
)
def test_splits_use_32_bit_floats(split, offloaded):
    """Every unit is on the first device whose cumulative share exceeds its position."""
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
    """Every value of `n_gpu_layers` that means all layers offloads all of them."""
    assert units({"n_gpu_layers": layers, "tensor_split": "3,4"}) == (0, 0, 0, 1, 1, 1, 1)


def test_the_first_layers_stay_on_the_host():
    """With four of seven units on devices, the first three layers stay on the host."""
    assert units({"n_gpu_layers": 4, "tensor_split": "1,1"}) == (HOST,) * 3 + (0, 0, 1, 1)
    assert units({"n_gpu_layers": 1, "tensor_split": "1,1"}) == (HOST,) * 6 + (0,)
    assert units({"n_gpu_layers": 0}) == (HOST,) * 7
    assert units({"devices": "none"}) == (HOST,) * 7


def test_without_a_split_the_memory_decides():
    """Without a split, or with zeros, devices share layers by usable memory."""
    assert units({}) == (0, 0, 0, 0, 0, 1, 1)
    assert units({"tensor_split": "0,0"}) == units({})
    assert units({}, available=devices(0, 0)) == (0, 0, 0, 0, 1, 1, 1)


def test_devices_have_the_candidates_order():
    """A split applies to devices in the order in which the candidate names them."""
    placed = place_tensors(SIX, Candidate({"devices": "CUDA1,CUDA0", "tensor_split": "1,6"}), TWO)
    assert [device.name for device in placed.devices] == ["CUDA1", "CUDA0"]
    assert placed.units == (0,) + (1,) * 6
    assert placed.blocks_on(0) == [0]
    assert placed.blocks_on(1) == [1, 2, 3, 4, 5]


def test_a_split_of_the_wrong_length():
    """Shares of missing devices are ignored, and devices without a share get nothing."""
    assert units({"tensor_split": "3,4,9"}) == units({"tensor_split": "3,4"})
    assert set(units({"tensor_split": "1"})) == {0}


def test_split_mode_none():
    """Split mode none places everything on the main device."""
    params = {"split_mode": "none", "main_gpu": 1, "tensor_split": "6,1"}
    placed = place_tensors(SIX, Candidate(params), TWO)
    assert [device.name for device in placed.devices] == ["CUDA1"]
    assert placed.units == (0,) * 7


def test_nextn_blocks_are_units_without_weights():
    """A block for multi-token prediction is a unit, but its weights are not loaded."""
    plain, more = handmade([30.0] * 6), handmade([30.0] * 7, nextn=1)
    on_one = Candidate({"devices": "CUDA0"})
    assert len(place_tensors(more, on_one, TWO).units) == 8
    assert place_tensors(more, on_one, TWO).weights == place_tensors(plain, on_one, TWO).weights


def test_host_experts_count_leading_dense_layers():
    """After two dense layers, a count of three moves the experts of one layer."""
    model = handmade([0.0, 0.0, 30.0, 30.0, 30.0])
    assert place_tensors(model, Candidate({"n_cpu_moe": 2}), TWO).host_expert_blocks == ()
    assert place_tensors(model, Candidate({"n_cpu_moe": 3}), TWO).host_expert_blocks == (2,)


def test_the_first_rule_that_matches_wins():
    """A tensor override has precedence over `n_cpu_moe`."""
    params = {"override_tensor": r"blk\.0\.ffn_down_exps=CUDA1", "n_cpu_moe": 2}
    placed = place_tensors(SIX, Candidate({**params, "tensor_split": "7,0"}), TWO)
    assert placed.experts[0] == (HOST, 1)
    assert placed.experts[1] == (HOST,)
    assert placed.weights[1] == 10 * MIB


def test_dense_feed_forward_moves_alone():
    """`n_cpu_ffn` moves the FFN of the first layers and not their attention."""
    model = handmade([0.0] * 4, dense_mib=24.0)
    placed = place_tensors(model, Candidate({"devices": "CUDA0", "n_cpu_ffn": 3}), TWO)
    assert placed.host_ffn_blocks == (0, 1, 2)
    assert placed.weights[HOST] == (3 * 24 + 20) * MIB
    assert placed.weights[0] == (4 * 10 + 24 + 20) * MIB


def test_a_remote_buffer_is_found_by_its_endpoint():
    """The buffer of device RPC1 has the name of its server and the number 0."""
    remote = devices(9000, 9000, backend="RPC")
    rule = r"blk\.0\.ffn_(up|down|gate)_exps=RPC0[10.0.0.1:50052]"
    placed = place_tensors(
        SIX, Candidate({"override_tensor": rule, "tensor_split": "7,0"}), remote
    )
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
def test_unknown_devices_and_invalid_values(params):
    """An unknown name, an invalid rule or number is a usage error with a hint."""
    with pytest.raises(UsageError) as fault:
        place_tensors(SIX, Candidate(params), TWO)
    assert fault.value.hint or "tensor_split" in fault.value.message


@given(
    st.lists(st.sampled_from([0.0, 12.0, 30.0]), min_size=1, max_size=8),
    st.integers(0, 9),
    st.integers(0, 9),
    st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(lambda s: sum(s) > 0),
)
def test_weights_add_up_to_the_model(experts, host_layers, offloaded, split):
    """Weights of all places add up to those of the model."""
    model = handmade(experts)
    available = tuple(Device(f"CUDA{i}", "", 9000, 9000) for i in range(len(split)))
    params = {
        "n_cpu_moe": host_layers,
        "n_gpu_layers": offloaded,
        "tensor_split": ",".join(map(str, split)),
    }
    placed = place_tensors(model, Candidate(params), available)
    expected = model.embedding_bytes + model.output_bytes
    expected += sum(block.total_bytes for block in model.blocks)
    assert expected <= sum(placed.weights.values()) <= expected + 128 * 4 * len(experts) + 256


NAMES = {part: f"ffn_{part}_exps.weight" for part in ("up", "down", "gate", "gate_up")} | {
    "chunked": "ffn_up_chexps.weight"
}
OTHERS = ("ffn_up_shexp.weight", "ffn_gate_inp.weight", "ffn_up.weight", "attn_q.weight")


def is_matched(pattern: str, name: str) -> bool:
    """Return whether the runtime finds the expression in a tensor's name."""
    return re.search(pattern, name) is not None


@given(st.sets(st.integers(0, 99), min_size=1, max_size=20))
def test_expert_pattern_matches_only_its_blocks(blocks):
    """All expert tensors of the blocks match, and no other tensor does."""
    pattern = expert_pattern(blocks)
    assert "," not in pattern
    for block in range(100):
        for name in NAMES.values():
            assert is_matched(pattern, f"blk.{block}.{name}") == (block in blocks)
        assert not any(is_matched(pattern, f"blk.{block}.{name}") for name in OTHERS)


def test_expert_pattern_is_short():
    """There is one expression with the blocks in order."""
    written = r"blk\.(0|1|2|20|21)\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    assert expert_pattern([20, 21, 2, 1, 0]) == written
    assert expert_pattern([7]) == r"blk\.7\.ffn_(up|down|gate|gate_up)_(ch|)exps"


@pytest.mark.parametrize(
    ("part", "hosted"), [("down", {"down"}), ("up_gate", {"up", "gate", "gate_up", "chunked"})]
)
def test_expert_pattern_of_a_partial_block(part, hosted):
    """All experts of whole blocks match, and only a part of the partial one."""
    pattern = expert_pattern([1, 2, 5], {5: part})
    for kind, name in NAMES.items():
        assert is_matched(pattern, f"blk.1.{name}")
        assert is_matched(pattern, f"blk.5.{name}") == (kind in hosted)
        assert not is_matched(pattern, f"blk.15.{name}")


def test_dense_pattern_matches_no_experts():
    """The expression for a dense FFN matches no experts and no routers."""
    assert is_matched(dense_pattern([3]), "blk.3.ffn_up.weight")
    assert not is_matched(dense_pattern([3]), "blk.3.ffn_up_exps.weight")
    assert not is_matched(dense_pattern([3]), "blk.13.ffn_up.weight")
    assert not is_matched(dense_pattern([3]), "blk.3.ffn_gate_inp.weight")


def test_overrides_come_before_counts():
    """Rules of `override_tensor` have precedence over the counts."""
    params = {"override_tensor": "a=CPU,b=CUDA0", "n_cpu_moe": 1, "n_cpu_ffn": 1}
    rules = read_overrides(Candidate(params))
    assert [rule.pattern.pattern for rule in rules[:2]] == ["a", "b"]
    assert [rule.buffer for rule in rules] == ["CPU", "CUDA0", "CPU", "CPU"]
    assert is_matched(rules[2].pattern.pattern, "blk.0.ffn_up_exps.weight")
    assert is_matched(rules[3].pattern.pattern, "blk.0.ffn_up.weight")


def test_the_rule_against_pipelining_matches_no_tensor():
    """The rule exists but moves no tensor."""
    (rule,) = read_overrides(Candidate({"override_tensor": NO_PIPELINE_RULE}))
    assert not rule.pattern.search("blk.0.attn_q.weight")
    assert not rule.pattern.search("output.weight")
