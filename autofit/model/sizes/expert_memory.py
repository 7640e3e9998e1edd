"""What prefetch and expert caches take of the device that computes host experts.

Both are allocated beside everything that a runtime reports of weights and KV. Prefetch slots
come with the first large batch, each as large as the largest expert tensor in system RAM;
prefetching by layer (`prefetch_weights`) holds the experts of one; a cache takes no more than
the experts that it can hold (llama.cpp #28414, #21067 and #29887, and the forks before them).
"""

from __future__ import annotations

from autofit.model.placement.placed_layers import HOST, Placement
from autofit.model.sizes.inventory import ModelInventory
from autofit.trial.candidate import Candidate, Params, ParamValue
from autofit.trial.parameter_groups import EXPERT_MEMORY_PARAMS
from autofit.units import MIB


def expert_settings(params: Params) -> dict[str, ParamValue]:
    """Those of the params that turn prefetch or a cache of experts on."""
    candidate = Candidate(params)
    return {name: params[name] for name in EXPERT_MEMORY_PARAMS if candidate.get_amount(name)}


def slot_mib(inventory: ModelInventory, placement: Placement) -> float:
    """One prefetch slot: the largest expert tensor in system RAM, 0 where there is none."""
    blocks = placement.host_expert_blocks
    return max((inventory.blocks[block].expert_max_bytes for block in blocks), default=0) / MIB


def prefetch_mib(inventory: ModelInventory, candidate: Candidate, placement: Placement) -> float:
    """What prefetching takes once a large batch was processed."""
    blocks = placement.host_expert_blocks
    largest = max((inventory.blocks[block].expert_bytes for block in blocks), default=0) / MIB
    slots = candidate.get_amount("prefetch_slots") * slot_mib(inventory, placement)
    return slots + (largest if candidate.get_amount("prefetch_weights") else 0.0)


def cache_mib(inventory: ModelInventory, candidate: Candidate, placement: Placement) -> float:
    """What a cache of experts takes, by its budget or by slots in each layer.

    Layers with experts on a device, too, are not cached.
    """
    whole = [
        inventory.blocks[block].expert_bytes
        for block, places in enumerate(placement.experts)
        if set(places) == {HOST} and placement.units[block] != HOST
    ]
    by_slots = candidate.get_amount("moe_cache_slots") * sum(whole) / max(1, inventory.n_expert)
    return min(candidate.get_amount("moe_cache_mib") + by_slots / MIB, sum(whole) / MIB)
