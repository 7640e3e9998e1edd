"""Values of parameters that no runtime accepts."""

from __future__ import annotations

import pytest

from autofit.trial.parameter_groups import find_value_fault


@pytest.mark.parametrize(
    ("name", "value", "type_", "words"),
    [
        ("ubatch", 0, "integer", "at least 1"),
        ("threads", -1, "integer", "at least 1"),
        ("batch", "512.5", "integer", "whole number"),
        ("batch", float("nan"), "integer", "whole number"),
        ("ubatch", True, "integer", "whole number"),
        ("n_cpu_moe", -1, "integer", "at least 0"),
        ("n_cpu_moe", 49, "integer", "at most 48, the model's blocks"),
        ("moe_cache_mib", 10**20, "integer", "at most 2147483647"),
        ("prefetch_slots", "two", "integer", "whole number"),
        ("tensor_split", "1,x", "list", "must be numbers"),
        ("tensor_split", "1,inf", "list", "finite"),
        ("tensor_split", "1,-2", "list", "at least 0"),
        ("tensor_split", "0,0", "list", "at least one share must be above 0"),
        ("tensor_split", "", "list", "must be numbers"),
    ],
)
def test_an_impossible_value_has_a_reason(name, value, type_, words):
    """The reason names the possible values."""
    assert words in find_value_fault(name, value, type_=type_, block_count=48)


@pytest.mark.parametrize(
    ("name", "value", "type_"),
    [
        ("ubatch", 1, "integer"),
        ("n_cpu_moe", 0, "integer"),
        ("n_cpu_moe", 48, "integer"),
        ("n_gpu_layers", -1, "integer"),
        ("tensor_split", "3,0,1.5", "list"),
        ("tensor_split", "3/1", "list"),
        ("tensor_split", 1, "list"),
        ("flash_attn", "on", "text"),
    ],
)
def test_a_possible_value_has_no_fault(name, value, type_):
    """The ends of the ranges are inside."""
    assert not find_value_fault(name, value, type_=type_, block_count=48)
