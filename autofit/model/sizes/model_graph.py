"""From a model, its placement and a candidate's settings to the graph that will be run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autofit.model.placement.placed_layers import HOST, Placement
from autofit.model.sizes.compute_buffer import GraphSettings, LayerGraph, ModelGraph, compute_bytes
from autofit.model.sizes.inventory import BlockInventory, ModelInventory
from autofit.model.sizes.kv_cache import Cells, kv_bytes, kv_types, recurrent_bytes
from autofit.model.sizes.run_time_memory import backend_of, can_stage
from autofit.trial.candidate import Candidate

_BATCH, _UBATCH = 2048, 512
_MIN_STAGED_BATCH = 32  # GGML_OP_OFFLOAD_MIN_BATCH
_COPIES = 4  # GGML_SCHED_MAX_COPIES
# Backends that scale the experts' results where they lie: RPC b11434, Vulkan b10434 (a server's
# buffer at ubatch 4,096 was 720 MiB, with CUDA 976: rows x width x experts used x 4 bytes less).
_SCALING_IN_PLACE = ("RPC", "Vulkan")
_STATE_KERNEL = 4  # the usual width of a recurrent layer's convolution
_FIRST_EXPERTS = re.compile(r"ffn_(up|gate|gate_up)_(ch|)exps\.weight")
_PLAIN_TYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a candidate is run.

    `rows` are tokens computed at once; `copies` is above 1 with pipeline parallelism;
    `staging_device` computes host experts of large batches, None where the host does.
    `cache_bytes` and `cache_elements` are by block.
    """

    rows: int
    outputs: int
    copies: int
    flash_attn: bool
    staging_device: int | None
    is_cache_offloaded: bool
    is_cache_quantized: bool
    cells: Cells
    cache_bytes: tuple[int, ...]
    cache_elements: tuple[int, ...]

    @classmethod
    def of(
        cls,
        inventory: ModelInventory,
        candidate: Candidate,
        placement: Placement,
        *,
        is_pipelined: bool | None = None,
        outputs: int | None = None,
    ) -> Run:
        """Read it from the candidate; an absent setting has the runtime's default."""
        context = candidate.get_int("context", 0) or inventory.context_train
        parallel = max(1, candidate.get_int("parallel", 1))
        flash_attn = candidate.get_str("flash_attn", "auto").lower() not in ("off", "false", "0")
        _, rows = batch_sizes(candidate, context)
        cells = Cells(context=context, parallel=parallel, ubatch=rows)
        type_k, type_v = kv_types(candidate)
        attention = kv_bytes(
            inventory,
            context=context,
            parallel=parallel,
            cache_type_k=type_k,
            cache_type_v=type_v,
            ubatch=rows,
            flash_attn=flash_attn,
        )
        offloaded = candidate.get_str("kv_offload", "on").lower() not in ("off", "false", "0")
        if is_pipelined is None:
            is_pipelined = _may_pipeline(placement) and offloaded
        return cls(
            rows=rows,
            outputs=min(outputs or parallel, rows),
            copies=_COPIES if is_pipelined else 1,
            flash_attn=flash_attn,
            staging_device=_staging_device(candidate, placement, rows),
            is_cache_offloaded=offloaded,
            is_cache_quantized=not {type_k, type_v} <= {*_PLAIN_TYPES},
            cells=cells,
            cache_bytes=tuple(
                a + r for a, r in zip(attention, recurrent_bytes(inventory, parallel), strict=True)
            ),
            cache_elements=tuple(
                cells.windowed(b.window) * cells.streams * b.n_head_kv * (b.head_k + b.head_v)
                for b in inventory.blocks
            ),
        )


def batch_sizes(candidate: Candidate, context: int) -> tuple[int, int]:
    """Tokens per batch and per ubatch as the runtime limits them."""
    batch = min(candidate.get_int("batch", _BATCH), context)
    return batch, min(candidate.get_int("ubatch", _UBATCH) or batch, batch)


def graph_bytes(inventory: ModelInventory, placement: Placement, run: Run) -> dict[int, int]:
    """Bytes of the compute buffer by device index, `HOST` included."""
    model = ModelGraph(
        n_embd=inventory.n_embd,
        n_vocab=inventory.n_vocab,
        n_head=inventory.n_head,
        n_expert=inventory.n_expert,
        n_expert_used=inventory.n_expert_used,
        n_ff_exp=inventory.n_ff_exp,
    )
    layers = tuple(
        _layer_graph(inventory, block, placement, run)
        for block in inventory.blocks
        if not block.is_nextn
    )
    settings = GraphSettings(
        ubatch=run.rows,
        outputs=run.outputs,
        flash_attn=run.flash_attn,
        copies=run.copies,
        staging_device=run.staging_device,
        inplace_devices=frozenset(
            index
            for index, device in enumerate(placement.devices)
            if backend_of(device.name) in _SCALING_IN_PLACE
        ),
    )
    return compute_bytes(model, layers, placement.output, settings)


def _layer_graph(
    inventory: ModelInventory, block: BlockInventory, placement: Placement, run: Run
) -> LayerGraph:
    device = placement.units[block.index]
    experts_on = placement.experts[block.index]
    is_recurrent = block.attention == "recurrent"
    has_cells = block.attention not in ("none", "recurrent")
    return LayerGraph(
        device=device,
        experts_on=HOST if HOST in experts_on else experts_on[0] if experts_on else device,
        expert_tensors=_expert_tensors(block),
        weight_bytes=max(block.attention_bytes // 2, block.dense_ffn_bytes // 3),
        attention=block.attention,
        n_head_kv=block.n_head_kv,
        head_k=block.head_k,
        head_v=block.head_v,
        cells=run.cells.windowed(block.window) if has_cells else 0,
        index_k=block.index_k,
        is_gated=_is_gated(inventory, block),
        channels=block.state_r // (_STATE_KERNEL - 1) if is_recurrent else 0,
        ffn_on=HOST if HOST in placement.dense_ffn[block.index] else device,
        n_ff=inventory.n_ff if block.dense_ffn_bytes else 0,
        n_ff_shared=_shared_width(inventory, block),
    )


def _expert_tensors(block: BlockInventory) -> tuple[int, ...]:
    """Bytes of the matrices before `down`, and of `down`."""
    if not block.expert_bytes:
        return ()
    count = sum(1 for name in block.expert_tensors if _FIRST_EXPERTS.search(name)) or 1
    return (*[block.expert_up_gate_bytes // count] * count, block.expert_down_bytes)


def _is_gated(inventory: ModelInventory, block: BlockInventory) -> bool:
    """Whether a gate goes with `up`; some models square or clip instead."""
    if block.expert_bytes:
        return any("gate" in name for name in block.expert_tensors)
    prefix = f"blk.{block.index}.ffn_"
    named = [tensor.name for tensor in inventory.tensors if tensor.name.startswith(prefix)]
    return not named or any(name.startswith(f"{prefix}gate") for name in named)


def _shared_width(inventory: ModelInventory, block: BlockInventory) -> int:
    """The inner size of the shared expert, from its bytes beside those of one expert."""
    if not block.shared_expert_bytes or not block.expert_bytes or not inventory.n_expert:
        return 0
    one = block.expert_bytes / inventory.n_expert
    return round(inventory.n_ff_exp * block.shared_expert_bytes / one)


def _may_pipeline(placement: Placement) -> bool:
    """Whether the runtime switches pipeline parallelism on (`llama-context.cpp`)."""
    return (
        len(placement.devices) > 1
        and placement.is_split
        and not placement.is_overridden
        and HOST not in placement.units
        and all(backend_of(device.name) != "CPU" for device in placement.devices)
    )


def _staging_device(candidate: Candidate, placement: Placement, rows: int) -> int | None:
    if rows < candidate.get_int("op_offload_min_batch", _MIN_STAGED_BATCH):
        return None
    return next((i for i, d in enumerate(placement.devices) if can_stage(d.name)), None)
