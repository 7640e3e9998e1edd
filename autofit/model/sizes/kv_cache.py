"""Bytes of the attention cache and of recurrent states, per block.

Follows llama.cpp's `llama-context.cpp` (cells of the context), `llama-kv-cache.cpp` (rows),
`llama-kv-cache-iswa.cpp` (cells of windows) and `llama-memory-recurrent.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass

from autofit.errors import UsageError
from autofit.model.gguf.block_type import BlockType, block_type_named
from autofit.model.sizes.inventory import ModelInventory
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.parameter_groups import KV_TYPE_PARAMS

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "iq4_nl", "q4_0")
DEFAULT_KV_TYPE = "f16"
# The type of the keys and the type of the values.
KvTypes = tuple[str, str]
_CELL_STEP = 256


def kv_element_bytes(kv_type: ParamValue, *, unknown: float = 0.0) -> float:
    """Return the bytes of one number in a KV type, or `unknown` for a type that ggml lacks."""
    block_type = block_type_named(str(kv_type))
    return block_type.nbytes / block_type.elements if block_type else unknown


def kv_types(candidate: Candidate) -> KvTypes:
    """Return the types in which a candidate caches keys and values."""
    keys, values = (candidate.get_str(name, DEFAULT_KV_TYPE) for name in KV_TYPE_PARAMS)
    return keys, values


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """How many cells the caches of one stream have, and how many streams there are.

    A unified cache is one stream of the whole context; else every sequence has its own, of its
    share of the context rounded up. What is computed at once needs cells beside a window.
    """

    context: int
    parallel: int = 1
    ubatch: int = 512
    unified: bool = False
    swa_full: bool = False

    @property
    def streams(self) -> int:
        """Caches side by side."""
        return 1 if self.unified else max(1, self.parallel)

    @property
    def full(self) -> int:
        """Cells of a block that sees everything."""
        return _rounded_up(_rounded_up(max(1, self.context)) // self.streams)

    def windowed(self, window: int) -> int:
        """Cells of a block that sees so many tokens, 0 meaning all."""
        if not window or self.swa_full:
            return self.full
        sequences = max(1, self.parallel) if self.unified else 1
        return _rounded_up(min(self.full, window * sequences + min(self.ubatch, self.full)))

    def compressed(self, ratio: int) -> int:
        """Cells where so many tokens share one."""
        return _rounded_up(-(-self.full // ratio))


def kv_bytes(
    inventory: ModelInventory,
    *,
    context: int,
    parallel: int = 1,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    ubatch: int = 512,
    swa_full: bool = False,
    unified: bool = False,
    flash_attn: bool = True,
) -> tuple[int, ...]:
    """Bytes of the attention cache, block by block; blocks for prediction keep none.

    Args:
        inventory: the model.
        context: tokens in all, all sequences together, as in `--ctx-size`.
        parallel: sequences, as in `--parallel`.
        cache_type_k: one of `KV_TYPES`.
        cache_type_v: one of `KV_TYPES`.
        ubatch: tokens computed at once, as in `--ubatch-size`.
        swa_full: windows keep the whole context, as in `--swa-full`.
        unified: all sequences share one cache, as in `--kv-unified`.
        flash_attn: without it V is kept transposed, in rows as wide as the widest block's.

    Raises:
        UsageError: a cache type that llama.cpp does not have.
    """
    type_k, type_v = _cache_type(cache_type_k), _cache_type(cache_type_v)
    cells = Cells(
        context=context, parallel=parallel, ubatch=ubatch, unified=unified, swa_full=swa_full
    )
    widest = max((block.n_head_kv * block.head_v for block in inventory.blocks), default=0)
    sizes = []
    for block in inventory.blocks:
        if block.is_nextn:
            sizes.append(0)
            continue
        row_k = type_k.row_bytes(block.n_head_kv * block.head_k)
        row_v = type_v.row_bytes(block.n_head_kv * block.head_v)
        if not flash_attn and block.head_v:
            row_v = type_v.row_bytes(widest)
        row_index = type_k.row_bytes(block.index_k)
        size = (row_k + row_v) * cells.windowed(block.window)
        if block.compression:
            size += (row_k + row_index) * cells.compressed(block.compression)
        else:
            size += row_index * cells.full
        sizes.append(size * cells.streams)
    return tuple(sizes)


def recurrent_bytes(inventory: ModelInventory, parallel: int = 1) -> tuple[int, ...]:
    """Bytes of f32 states, block by block, whatever the context."""
    return tuple(
        0 if block.is_nextn else 4 * (block.state_r + block.state_s) * max(1, parallel)
        for block in inventory.blocks
    )


def _cache_type(name: str) -> BlockType:
    block_type = block_type_named(name)
    if block_type is None or block_type.name not in KV_TYPES:
        raise UsageError(f"unknown cache type '{name}'", f"one of {', '.join(KV_TYPES)}")
    return block_type


def _rounded_up(cells: int) -> int:
    return -(-cells // _CELL_STEP) * _CELL_STEP
