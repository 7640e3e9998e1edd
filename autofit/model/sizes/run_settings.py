"""A candidate's settings as the runtime applies them to a model and a placement."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.kv_cache import Cells, kv_cache_bytes, kv_types, recurrent_bytes
from autofit.model.sizes.tensor_placement import HOST, Placement
from autofit.model.sizes.unreported_memory import can_stage
from autofit.trial.candidate import Candidate
from autofit.trial.device import backend_of

_BATCH, _UBATCH = 2048, 512
_MIN_STAGED_BATCH = 32  # GGML_OP_OFFLOAD_MIN_BATCH
_COPIES = 4  # GGML_SCHED_MAX_COPIES
_PLAIN_TYPES = frozenset({"f32", "f16", "bf16"})
_OFF = ("off", "false", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The effective settings of a launch; an absent one has the runtime's default.

    `outputs` are rows of logits. `copies` is above 1 with pipeline parallelism. The
    `staging_device` computes large batches with host experts; None if the host does.
    `cache_bytes` and `cache_elements` are by block.
    """

    ubatch: int
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
    ) -> RunSettings:
        """Derive the settings from a candidate; see `estimate_memory` for the arguments."""
        context = candidate.get_int("context", 0) or inventory.context_train
        parallel = max(1, candidate.get_int("parallel", 1))
        flash_attn = candidate.get_str("flash_attn", "auto").lower() not in _OFF
        _, ubatch = batch_sizes(candidate, context)
        cells = Cells(
            context=context,
            parallel=parallel,
            ubatch=ubatch,
            unified=_is_on(candidate, "kv_unified"),
            swa_full=_is_on(candidate, "swa_full"),
        )
        types = kv_types(candidate)
        attention = kv_cache_bytes(inventory, cells, types, flash_attn=flash_attn)
        states = recurrent_bytes(inventory, parallel)
        is_offloaded = candidate.get_str("kv_offload", "on").lower() not in _OFF
        if is_pipelined is None:
            is_pipelined = _may_pipeline(placement) and is_offloaded
        return cls(
            ubatch=ubatch,
            outputs=min(outputs or parallel, ubatch),
            copies=_COPIES if is_pipelined else 1,
            flash_attn=flash_attn,
            staging_device=_staging_device(candidate, placement, ubatch),
            is_cache_offloaded=is_offloaded,
            is_cache_quantized=not _PLAIN_TYPES.issuperset(types),
            cells=cells,
            cache_bytes=tuple(a + s for a, s in zip(attention, states, strict=True)),
            cache_elements=tuple(
                cells.windowed(b.window) * cells.streams * b.n_head_kv * (b.head_k + b.head_v)
                for b in inventory.blocks
            ),
        )


def _is_on(candidate: Candidate, switch: str) -> bool:
    """Return whether a candidate turns on a switch that is off by default."""
    return candidate.get_str(switch, "off").lower() not in _OFF


def batch_sizes(candidate: Candidate, context: int) -> tuple[int, int]:
    """Return the tokens per batch and per ubatch after the runtime's limits."""
    batch = min(candidate.get_int("batch", _BATCH), context)
    return batch, min(candidate.get_int("ubatch", _UBATCH) or batch, batch)


def _may_pipeline(placement: Placement) -> bool:
    """Return whether the runtime turns pipeline parallelism on (`llama-context.cpp`)."""
    return (
        len(placement.devices) > 1
        and placement.is_split
        and not placement.is_overridden
        and HOST not in placement.units
        and all(backend_of(device.name) != "CPU" for device in placement.devices)
    )


def _staging_device(candidate: Candidate, placement: Placement, ubatch: int) -> int | None:
    is_off = candidate.get_str("op_offload", "on").lower() in _OFF
    if is_off or ubatch < candidate.get_int("op_offload_min_batch", _MIN_STAGED_BATCH):
        return None
    return next((i for i, d in enumerate(placement.devices) if can_stage(d.name)), None)
