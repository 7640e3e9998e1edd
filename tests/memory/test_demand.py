"""Settings are ordered by the memory that they need."""

from __future__ import annotations

import math

import pytest

from autofit.memory.demand import demand, kv_bytes, without_free_settings
from autofit.trial.candidate import Candidate


@pytest.mark.parametrize(("name", "size"), [("f16", 2.0), ("q8_0", 1.0625), ("q4_0", 0.5625)])
def test_size_of_a_kv_element_is_that_of_its_blocks(name, size):
    """Sizes are those of the blocks that llama.cpp stores."""
    assert kv_bytes(name) == size


def test_kv_type_of_a_fork_has_no_known_size():
    """An unknown size is nan, so that it compares with nothing."""
    assert math.isnan(kv_bytes("turbo3c"))


def test_host_layers_need_host_memory_instead_of_device_memory():
    """Their demand has opposite signs; a ubatch needs device memory alone."""
    assert demand("host_expert_layers", 9) < demand("host_expert_layers", 8)
    assert demand("host_expert_layers", 9, "host") > demand("host_expert_layers", 8, "host")
    assert demand("ubatch", 1024) > demand("ubatch", 512)
    assert math.isnan(demand("ubatch", 1024, "host"))


def test_batch_counts_only_where_it_limits_the_ubatch():
    """Candidates that differ in threads or in a larger batch are reduced to the same."""
    base = Candidate({"ubatch": 512, "batch": 2048, "threads": 4, "load_mode": "mmap"})

    def reduced(**changes):
        return without_free_settings(base.with_params(**changes))

    assert reduced(threads=8, batch=4096) == reduced()
    assert reduced(batch=256) != reduced()
    assert reduced(load_mode="none") != reduced()
    assert without_free_settings(base, devices_only=True) == Candidate(
        {"ubatch": 512, "batch": 512}
    )
