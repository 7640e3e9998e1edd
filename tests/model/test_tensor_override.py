"""Expressions of tensor overrides."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.model.placement.tensor_override import (
    NO_PIPELINE_RULE,
    dense_pattern,
    expert_pattern,
    overrides_of,
)
from autofit.trial.candidate import Candidate

NAMES = {part: f"ffn_{part}_exps.weight" for part in ("up", "down", "gate", "gate_up")} | {
    "chunked": "ffn_up_chexps.weight"
}
OTHERS = ("ffn_up_shexp.weight", "ffn_gate_inp.weight", "ffn_up.weight", "attn_q.weight")


def is_matched(pattern: str, name: str) -> bool:
    """Whether the runtime would find the expression in a tensor's name."""
    return re.search(pattern, name) is not None


@given(st.sets(st.integers(0, 99), min_size=1, max_size=20))
def test_an_expression_names_the_experts_of_its_blocks_and_nothing_else(blocks):
    """All expert tensors of the blocks match; other blocks and other tensors do not."""
    pattern = expert_pattern(blocks)
    assert "," not in pattern
    for block in range(100):
        for name in NAMES.values():
            assert is_matched(pattern, f"blk.{block}.{name}") == (block in blocks)
        assert not any(is_matched(pattern, f"blk.{block}.{name}") for name in OTHERS)


def test_it_is_as_short_as_a_person_would_write_it():
    """One expression per buffer, blocks in order."""
    written = r"blk\.(0|1|2|20|21)\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    assert expert_pattern([20, 21, 2, 1, 0]) == written
    assert expert_pattern([7]) == r"blk\.7\.ffn_(up|down|gate|gate_up)_(ch|)exps"


@pytest.mark.parametrize(
    ("part", "hosted"), [("down", {"down"}), ("up_gate", {"up", "gate", "gate_up", "chunked"})]
)
def test_a_part_of_one_block_goes_into_the_same_expression(part, hosted):
    """Whole blocks match whole, the partial one only in its part."""
    pattern = expert_pattern([1, 2, 5], {5: part})
    for kind, name in NAMES.items():
        assert is_matched(pattern, f"blk.1.{name}")
        assert is_matched(pattern, f"blk.5.{name}") == (kind in hosted)
        assert not is_matched(pattern, f"blk.15.{name}")


def test_dense_layers_are_named_without_their_experts():
    """The expression for a dense FFN leaves experts and routers alone."""
    assert is_matched(dense_pattern([3]), "blk.3.ffn_up.weight")
    assert not is_matched(dense_pattern([3]), "blk.3.ffn_up_exps.weight")
    assert not is_matched(dense_pattern([3]), "blk.13.ffn_up.weight")
    assert not is_matched(dense_pattern([3]), "blk.3.ffn_gate_inp.weight")


def test_rules_are_tried_in_the_order_of_the_command_line():
    """Overrides come before the counts."""
    params = {"override_tensor": "a=CPU,b=CUDA0", "n_cpu_moe": 1, "n_cpu_ffn": 1}
    rules = overrides_of(Candidate(params))
    assert [rule.pattern.pattern for rule in rules[:2]] == ["a", "b"]
    assert [rule.buffer for rule in rules] == ["CPU", "CUDA0", "CPU", "CPU"]
    assert is_matched(rules[2].pattern.pattern, "blk.0.ffn_up_exps.weight")
    assert is_matched(rules[3].pattern.pattern, "blk.0.ffn_up.weight")


def test_the_harmless_rule_matches_no_tensor():
    """It is a rule, and sends nothing anywhere."""
    (rule,) = overrides_of(Candidate({"override_tensor": NO_PIPELINE_RULE}))
    assert not rule.pattern.search("blk.0.attn_q.weight")
    assert not rule.pattern.search("output.weight")
