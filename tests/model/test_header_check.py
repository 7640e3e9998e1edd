"""Sizes that no model has."""

from __future__ import annotations

import pytest
from model_headers import MODELS

from autofit.errors import UsageError
from autofit.model.sizes.inventory import inventory


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
def test_a_size_that_cannot_be_is_named(key, value, tmp_path):
    """The file, the key and its value are told before anything is computed."""
    header = MODELS["qwen3moe"]()
    header.keys[key] = value
    path = header.write(tmp_path / "m.gguf")

    with pytest.raises(UsageError, match=rf"m\.gguf: qwen3moe\.{key} is {value}: ") as error:
        inventory(path)

    assert error.value.exit_code == 2


def test_a_model_that_uses_all_of_its_experts_is_read(tmp_path):
    """As many used as there are is the most that can be."""
    header = MODELS["qwen3moe"]()
    header.keys["expert_used_count"] = header.keys["expert_count"]

    model = inventory(header.write(tmp_path / "m.gguf"))

    assert model.n_expert_used == model.n_expert
