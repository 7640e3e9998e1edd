"""Bytes of the attention cache and of recurrent states, per block.

Follows llama.cpp's `llama-context.cpp` (cells of the context), `llama-kv-cache.cpp` (rows),
`llama-kv-cache-iswa.cpp` (cells of windows) and `llama-memory-recurrent.cpp`.
"""

from __future__ import annotations

from autofit.errors import UsageError
from autofit.model.block_type import BlockType, block_type_named
from autofit.model.inventory import BlockInventory, ModelInventory

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "iq4_nl", "q4_0")
_CELL_STEP = 256


def context_cells(context: int, parallel: int, *, unified: bool = False) -> tuple[int, int]:
    """Cells of one stream, and how many streams there are.

    A unified cache is one stream of the whole context; else every sequence has its own, of its
    share rounded up.
    """
    total = _rounded_up(max(1, context))
    if unified or parallel <= 1:
        return total, 1
    return _rounded_up(total // parallel), parallel


def window_cells(  # noqa: D417 - all but one are told in words
    window: int, *, context: int, parallel: int, ubatch: int, unified: bool = False
) -> int:
    """Cells of one stream of a block that attends through a window.

    Args:
        ubatch: tokens computed at once: they need cells beside the window.
    """
    cells, _ = context_cells(context, parallel, unified=unified)
    sequences = max(1, parallel) if unified else 1
    return _rounded_up(min(cells, window * sequences + min(ubatch, cells)))


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
) -> tuple[int, ...]:
    """Bytes of the attention cache, block by block; blocks for prediction keep none.

    Args:
        inventory: the model.
        context: tokens in all, all sequences together, as in `--ctx-size`.
        parallel: sequences, as in `--parallel`.
        cache_type_k: one of `CACHE_TYPES`.
        cache_type_v: one of `CACHE_TYPES`.
        ubatch: tokens computed at once, as in `--ubatch-size`.
        swa_full: windows keep the whole context, as in `--swa-full`.
        unified: all sequences share one cache, as in `--kv-unified`.

    Raises:
        UsageError: a cache type that llama.cpp does not have.
    """
    type_k, type_v = _cache_type(cache_type_k), _cache_type(cache_type_v)
    cells, streams = context_cells(context, parallel, unified=unified)
    sizes = []
    for block in inventory.blocks:
        kept = cells
        if block.window and not swa_full:
            kept = window_cells(
                block.window, context=context, parallel=parallel, ubatch=ubatch, unified=unified
            )
        per_token = 0 if block.is_nextn else _token_bytes(block, type_k, type_v)
        sizes.append(per_token * kept * streams)
    return tuple(sizes)


def recurrent_bytes(inventory: ModelInventory, parallel: int = 1) -> tuple[int, ...]:
    """Bytes of the f32 states of recurrent blocks, block by block, whatever the context."""
    return tuple(
        0 if block.is_nextn else 4 * (block.state_r + block.state_s) * max(1, parallel)
        for block in inventory.blocks
    )


def token_bytes(block: BlockInventory, cache_type_k: str, cache_type_v: str) -> int:
    """Bytes that one more token in the cache takes in a block."""
    return _token_bytes(block, _cache_type(cache_type_k), _cache_type(cache_type_v))


def _token_bytes(block: BlockInventory, type_k: BlockType, type_v: BlockType) -> int:
    row_k = type_k.row_bytes(block.n_head_kv * block.head_k)
    row_v = type_v.row_bytes(block.n_head_kv * block.head_v)
    return row_k + row_v


def _cache_type(name: str) -> BlockType:
    block_type = block_type_named(name)
    if block_type is None or block_type.name not in CACHE_TYPES:
        raise UsageError(f"unknown cache type '{name}'", f"one of {', '.join(CACHE_TYPES)}")
    return block_type


def _rounded_up(cells: int) -> int:
    return -(-cells // _CELL_STEP) * _CELL_STEP
