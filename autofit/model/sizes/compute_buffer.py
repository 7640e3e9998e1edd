"""The compute buffer of each device, from a model's layers and where they are computed.

`benchmarks/bench_estimator.py` compares the result with the buffers of llama-server b11434. It
covers CUDA and remote devices, mixtures of experts and dense models, ubatch 512 to 4,096, and
context 4,096 to 131,072. It covers one and two devices, with and without host experts.
"""

from __future__ import annotations

import re
from functools import lru_cache

from autofit.model.sizes.compute_graph import (
    CONVOLUTION_WIDTH,
    GraphLayer,
    GraphSettings,
    graph_bytes,
)
from autofit.model.sizes.inventory import BlockInventory, ModelInventory
from autofit.model.sizes.run_settings import RunSettings
from autofit.model.sizes.tensor_placement import HOST, Placement
from autofit.trial.device import backend_of

# These backends scale the results of experts in place: RPC b11434 and Vulkan b10434 (at ubatch
# 4,096 a server's buffer had 720 MiB, with CUDA 976: ubatch x width x experts used x 4 bytes).
_SCALES_IN_PLACE = ("RPC", "Vulkan")
# Their last layer computes all rows, for a block of multi-token prediction.
_FULL_LAST_LAYERS = frozenset(
    {"bailingmoe3", "cohere2moe", "gemma4", "gpt-oss", "hy_v3", "nemotron_h", "nemotron_h_moe"}
    | {"qwen35", "qwen35moe", "qwen3next", "step35"}
)
_FIRST_EXPERTS = re.compile(r"ffn_(up|gate|gate_up)_(ch|)exps\.weight")


def compute_buffer_bytes(
    inventory: ModelInventory, placement: Placement, run: RunSettings
) -> dict[int, int]:
    """Return the bytes of the compute buffer by place, including `HOST`."""
    layers = tuple(
        _graph_layer(inventory, block, placement, run)
        for block in inventory.blocks
        if not block.is_nextn
    )
    settings = GraphSettings(
        n_embd=inventory.n_embd,
        n_vocab=inventory.n_vocab,
        n_head=inventory.n_head,
        n_expert=inventory.n_expert,
        n_expert_used=inventory.n_expert_used,
        n_ff_exp=inventory.n_ff_exp,
        has_full_last_layer=inventory.architecture in _FULL_LAST_LAYERS,
        ubatch=run.ubatch,
        outputs=run.outputs,
        flash_attn=run.flash_attn,
        copies=run.copies,
        staging_device=run.staging_device,
        inplace_devices=frozenset(
            index
            for index, device in enumerate(placement.devices)
            if backend_of(device.name) in _SCALES_IN_PLACE
        ),
    )
    return graph_bytes(layers, placement.output, settings)


def _graph_layer(
    inventory: ModelInventory, block: BlockInventory, placement: Placement, run: RunSettings
) -> GraphLayer:
    device = placement.units[block.index]
    experts_on = placement.experts[block.index]
    is_recurrent = block.attention == "recurrent"
    has_cells = block.attention not in ("none", "recurrent")
    query, latent, head_result = _attention_widths(inventory, block)
    return GraphLayer(
        device=device,
        experts_on=HOST if HOST in experts_on else experts_on[0] if experts_on else device,
        expert_tensors=_expert_tensors(block),
        weight_bytes=max(block.attention_bytes // 2, block.dense_ffn_bytes // 3),
        attention=block.attention,
        query=query,
        latent=latent,
        head_result=head_result,
        n_head_kv=block.n_head_kv,
        head_k=block.head_k,
        head_v=block.head_v,
        cells=run.cells.windowed(block.window) if has_cells else 0,
        window=block.window if run.cells.swa_full else 0,
        index_k=block.index_k,
        is_gated=_is_gated(inventory, block),
        channels=block.state_r // (CONVOLUTION_WIDTH - 1) if is_recurrent else 0,
        state=block.state_s * run.cells.parallel if is_recurrent else 0,
        ffn_on=HOST if HOST in placement.dense_ffn[block.index] else device,
        n_ff=inventory.n_ff if block.dense_ffn_bytes else 0,
        n_ff_shared=_shared_expert_width(inventory, block),
    )


def _expert_tensors(block: BlockInventory) -> tuple[int, ...]:
    """Return the bytes of the matrices before `down`, and of `down`."""
    if not block.expert_bytes:
        return ()
    count = sum(1 for name in block.expert_tensors if _FIRST_EXPERTS.search(name)) or 1
    return (*[block.expert_up_gate_bytes // count] * count, block.expert_down_bytes)


def _attention_widths(inventory: ModelInventory, block: BlockInventory) -> tuple[int, int, int]:
    """Return the width of the query, of a latent, and of a head's result from latents."""
    shapes = _shapes(inventory)
    names = (f"blk.{block.index}.attn_{part}.weight" for part in ("q", "q_b"))
    query = next((shapes[name][1] for name in names if name in shapes), 0)
    result = shapes.get(f"blk.{block.index}.attn_v_b.weight", (0, 0))
    return query or inventory.n_head * block.head_k, result[0], result[1]


@lru_cache(maxsize=8)
def _shapes(inventory: ModelInventory) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in inventory.tensors}


def _is_gated(inventory: ModelInventory, block: BlockInventory) -> bool:
    """Return whether the block has both a gate and `up`; some models have no gate."""
    if block.expert_bytes:
        return any("gate" in name for name in block.expert_tensors)
    prefix = f"blk.{block.index}.ffn_"
    has_up = f"{prefix}up.weight" in _shapes(inventory)
    return not has_up or f"{prefix}gate.weight" in _shapes(inventory)


def _shared_expert_width(inventory: ModelInventory, block: BlockInventory) -> int:
    """Return the inner size of the shared expert, computed from the bytes of one expert."""
    if not block.shared_expert_bytes or not block.expert_bytes or not inventory.n_expert:
        return 0
    one = block.expert_bytes / inventory.n_expert
    return round(inventory.n_ff_exp * block.shared_expert_bytes / one)
