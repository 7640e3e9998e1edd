"""Prices, largest contexts, unused room."""

from __future__ import annotations

import pytest
from model.layout_samples import MEASURED, SERVED, devices, handmade, synthesized

from autofit.memory.exchange_rates import exchange_rates, max_contexts, unused_rooms
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.trial.candidate import Candidate

CARDS = devices(12288, 7168)
ON_TWO = SERVED.with_params(n_cpu_moe=20, tensor_split="30,11")


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> ModelInventory:
    """The model of the published measurements."""
    return synthesized(MEASURED, tmp_path_factory.mktemp("model"))


def test_prices_are_what_changes_cost(measured):
    """A layer of 432 MiB, 80 KiB of f16 cache a token, and the memory of a ubatch."""
    rates = exchange_rates(measured, ON_TWO, CARDS)
    assert rates.expert_layer_mib == pytest.approx(432)
    cache_mib = 80 * 1024 * 1000 / 2**20
    assert cache_mib < rates.context_1k_mib["f16"] < cache_mib * 1.15
    assert rates.context_1k_mib["q8_0"] > rates.context_1k_mib["q4_0"]
    wider = ON_TWO.with_params(ubatch=2560)
    more = [estimate_memory(measured, c, CARDS).devices for c in (ON_TWO, wider)]
    grown = sum(d.total_mib for d in more[1]) - sum(d.total_mib for d in more[0])
    assert rates.ubatch_512_mib == pytest.approx(grown)
    assert rates.ubatch_512_mib > 100


def test_a_dense_model_has_no_expert_layer():
    """Its price is 0."""
    base = Candidate({"context": 2048, "devices": "CUDA0"})
    assert exchange_rates(handmade([0.0] * 3), base, CARDS).expert_layer_mib == 0


def test_the_largest_context_fits_and_the_next_does_not(measured):
    """For every KV type the boundary is where it is said to be; narrower types reach further."""
    found = max_contexts(measured, ON_TWO, CARDS)
    assert list(found) == ["f16", "q8_0", "q5_1", "q4_0"]
    assert list(found.values()) == sorted(found.values())
    for cache_type, context in found.items():
        at = ON_TWO.with_params(cache_type_k=cache_type, cache_type_v=cache_type)
        assert estimate_memory(measured, at.with_params(context=context), CARDS).fits
        assert not estimate_memory(measured, at.with_params(context=context + 256), CARDS).fits


def test_no_context_is_larger_than_what_the_model_was_trained_for(measured):
    """With room for more it is that, for each sequence; with no room at all it is 0."""
    roomy = devices(200000)
    whole = SERVED.with_params(devices="CUDA0")
    assert max_contexts(measured, whole, roomy, ["q8_0"]) == {"q8_0": 262144}
    two = whole.with_params(parallel=2)
    assert max_contexts(measured, two, roomy, ["q8_0"]) == {"q8_0": 2 * 262144}
    assert max_contexts(measured, whole, devices(900), ["q8_0"]) == {"q8_0": 0}


def test_room_for_a_layer_is_pointed_out(measured):
    """Both cards could take more experts; a card with less than a layer's room could not."""
    estimate = estimate_memory(measured, ON_TWO, CARDS)
    rooms = unused_rooms(measured, estimate)
    assert [room.device for room in rooms] == ["CUDA0", "CUDA1"]
    assert "12 more expert layers of 432 MiB" in rooms[0].text
    free_mib = {"CUDA0": 500.0, "CUDA1": 100.0}
    assert [r.device for r in unused_rooms(measured, estimate, free_mib)] == ["CUDA0"]


def test_nothing_is_pointed_out_when_nothing_sits_in_ram(measured):
    """All experts on devices, or none at all: no notice."""
    roomy = devices(30000, 30000)
    whole = estimate_memory(measured, SERVED, roomy)
    assert unused_rooms(measured, whole) == []
    dense = handmade([0.0] * 3)
    base = Candidate({"context": 2048})
    assert unused_rooms(dense, estimate_memory(dense, base, roomy)) == []
