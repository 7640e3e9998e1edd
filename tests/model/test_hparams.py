"""Hyperparameters that no model can have."""

from __future__ import annotations

import pytest
from model_headers import MODELS

from autofit.errors import UsageError
from autofit.model.sizes.inventory import read_inventory


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_used_count", 0),
        ("expert_used_count", 129),
        ("expert_used_count", 2**32 - 1),
        ("expert_count", 0),
        ("expert_count", 2**32 - 1),
        ("block_count", 0),
        ("embedding_length", 0),
        ("embedding_length", 2**32 - 1),
        ("attention.head_count", 0),
        ("attention.head_count_kv", 2**32 - 1),
    ],
)
def test_an_impossible_size_is_named(key, value, tmp_path):
    """The error names the file, the key and its value."""
    header = MODELS["qwen3moe"]()
    header.keys[key] = value
    path = header.write(tmp_path / "m.gguf")

    with pytest.raises(UsageError, match=rf"m\.gguf: qwen3moe\.{key} is {value}: ") as error:
        read_inventory(path)

    assert error.value.exit_code == 2


def test_a_model_can_use_all_its_experts(tmp_path):
    """The number of used experts can be equal to the number of experts."""
    header = MODELS["qwen3moe"]()
    header.keys["expert_used_count"] = header.keys["expert_count"]

    model = read_inventory(header.write(tmp_path / "m.gguf"))

    assert model.n_expert_used == model.n_expert
