"""A layer whose experts are only in part on the host: for models whose layers are large.

Where the experts of one layer take more than 400 MiB, a device can be left with most of that
unused. Up and gate belong together, since they are multiplied by the same input.
"""

from __future__ import annotations

from collections.abc import Sequence

from autofit.model.sizes.inventory import ModelInventory
from autofit.units import MIB

LARGE_LAYER_MIB = 400.0


def partial_layers(
    inventory: ModelInventory, host_experts: Sequence[int], free_mib: float
) -> dict[int, str]:
    """Which part of a slice's last hosted layer stays on the host, when the rest has room.

    At most one layer; the part is `down` or `up_gate`. Empty where layers are small or there
    is no room.
    """
    if not host_experts:
        return {}
    block = inventory.blocks[max(host_experts)]
    if block.expert_bytes <= LARGE_LAYER_MIB * MIB or not block.expert_down_bytes:
        return {}
    sizes = {"down": block.expert_up_gate_bytes, "up_gate": block.expert_down_bytes}
    for part, returned in sizes.items():
        if 0 < returned <= free_mib * MIB:
            return {block.index: part}
    return {}
