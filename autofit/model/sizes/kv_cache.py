"""Bytes of the KV cache and of recurrent states, by block; the types of cached keys and values.

Follows llama.cpp's `llama-context.cpp` (cells of the context), `llama-kv-cache.cpp` (rows),
`llama-kv-cache-iswa.cpp` (cells of windows) and `llama-memory-recurrent.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass

from autofit.errors import UsageError
from autofit.model.gguf.block_type import BlockType, find_block_type
from autofit.model.sizes.inventory import ModelInventory
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.parameter_groups import KV_TYPE_PARAMS

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "iq4_nl", "q4_0")
DEFAULT_KV_TYPE = "f16"
# The type of the keys and the type of the values.
KvTypes = tuple[str, str]
CELL_STEP = 256  # llama.cpp rounds the cells of a sequence up to a multiple of this


def kv_element_bytes(kv_type: ParamValue, *, unknown: float = 0.0) -> float:
    """Return the bytes of one number in a KV type, or `unknown` if ggml lacks the type."""
    block_type = find_block_type(str(kv_type))
    return block_type.nbytes / block_type.elements if block_type else unknown


def kv_types(candidate: Candidate) -> KvTypes:
    """Return the types in which a candidate caches keys and values."""
    keys, values = (candidate.get_str(name, DEFAULT_KV_TYPE) for name in KV_TYPE_PARAMS)
    return keys, values


def format_kv_types(types: KvTypes) -> str:
    """Format the types of keys and values for people; equal types are named once."""
    return "/".join(dict.fromkeys(types))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """The number of cells of a KV cache.

    A unified cache is one stream with the whole context. Otherwise each sequence has a stream
    with its share of the context, rounded up. A windowed cache has room for the window and for
    one ubatch.

    Attributes:
        context: tokens of all sequences together, as in `--ctx-size`.
        parallel: number of sequences, as in `--parallel`.
        ubatch: tokens computed at once, as in `--ubatch-size`.
        unified: all sequences share one cache, as with `--kv-unified`.
        swa_full: windowed blocks cache the whole context, as with `--swa-full`.
    """

    context: int
    parallel: int = 1
    ubatch: int = 512
    unified: bool = False
    swa_full: bool = False

    @property
    def streams(self) -> int:
        """Number of separate caches."""
        return 1 if self.unified else max(1, self.parallel)

    @property
    def full(self) -> int:
        """Cells per stream of a block that sees all tokens."""
        return _round_up(_round_up(max(1, self.context)) // self.streams)

    def windowed(self, window: int) -> int:
        """Return the cells per stream of a block that sees `window` tokens, or 0 for all."""
        if not window or self.swa_full:
            return self.full
        sequences = max(1, self.parallel) if self.unified else 1
        return _round_up(min(self.full, window * sequences + min(self.ubatch, self.full)))

    def compressed(self, ratio: int) -> int:
        """Return the cells per stream if `ratio` tokens share one."""
        return _round_up(-(-self.full // ratio))


def kv_cache_bytes(
    inventory: ModelInventory,
    cells: Cells,
    types: KvTypes = (DEFAULT_KV_TYPE, DEFAULT_KV_TYPE),
    *,
    flash_attn: bool = True,
) -> tuple[int, ...]:
    """Return the bytes of the KV cache by block; blocks for multi-token prediction have none.

    Without flash attention V is transposed, and its rows are as wide as in the widest block.

    Raises:
        UsageError: a KV type that llama.cpp does not have.
    """
    type_k, type_v = map(_find_kv_type, types)
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
    """Return the bytes of f32 states by block; they do not depend on the context."""
    return tuple(
        0 if block.is_nextn else 4 * (block.state_r + block.state_s) * max(1, parallel)
        for block in inventory.blocks
    )


def _find_kv_type(name: str) -> BlockType:
    block_type = find_block_type(name)
    if block_type is None or block_type.name not in KV_TYPES:
        raise UsageError(f"unknown KV type '{name}'", f"one of {', '.join(KV_TYPES)}")
    return block_type


def _round_up(cells: int) -> int:
    return -(-cells // CELL_STEP) * CELL_STEP
