"""What each block keeps per token and per sequence, as elements.

Follows llama.cpp's `llama-hparams.cpp`, `llama-kv-cache.cpp` and `llama-memory-recurrent.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from autofit.model.sizes import architecture

AttentionKind = Literal["full", "swa", "mla", "recurrent", "none"]

_RECURRENT_PREFIXES = ("ssm_", "shortconv.", "time_mix_")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """One block's cache, in elements.

    `head_k` and `head_v` are per KV head and token; `head_v` is 0 where only K is kept. A block
    without KV heads may still have a place in the cache, and then has sizes of heads.
    `index_k` is what an indexer keeps per token. With a `window`, that many tokens are kept
    instead of all; with a `compression` beside it, all tokens as well, so many in one row.
    `state_r` and `state_s` are f32 states per sequence. A block may attend and be recurrent.
    """

    attention: AttentionKind = "none"
    n_head_kv: int = 0
    head_k: int = 0
    head_v: int = 0
    window: int = 0
    index_k: int = 0
    compression: int = 0
    state_r: int = 0
    state_s: int = 0


class Hparams:
    """The metadata of a model's architecture, without the prefix."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.architecture = str(metadata.get("general.architecture", "unknown"))
        self._metadata = metadata

    def has(self, key: str) -> bool:
        """Whether the file says anything for the key."""
        return self._get(key) is not None

    def integer(self, key: str, default: int = 0) -> int:
        """A whole number, the largest of a list, or the default; sizes are never negative."""
        value = self._get(key)
        if isinstance(value, tuple):
            return max(map(_size, value), default=default)
        return _size(value) if isinstance(value, int) else default

    def per_block(self, key: str, blocks: int, default: Sequence[int]) -> list[int]:
        """A number for each block: listed, or one for all, or the defaults."""
        value = self._get(key)
        if isinstance(value, tuple):
            listed = [_size(entry) for entry in value[:blocks]]
            return listed + list(default[len(listed) :])
        return [_size(value)] * blocks if isinstance(value, int) else list(default)

    def is_list(self, key: str) -> bool:
        """Whether the file lists a value for each block."""
        return isinstance(self._get(key), tuple)

    def _get(self, key: str) -> Any:  # noqa: ANN401 - metadata can be anything
        return self._metadata.get(f"{self.architecture}.{key}")


def _size(value: object) -> int:
    return max(0, int(value)) if isinstance(value, int) else 0


def cache_shapes(
    hparams: Hparams, tensors: Sequence[Sequence[str]], nextn: int
) -> tuple[list[CacheShape], list[str]]:
    """The cache of every block, and notices about what could not be told.

    Args:
        hparams: the model's metadata.
        tensors: names of each block's tensors without `blk.N.`.
        nextn: how many blocks at the end are for multi-token prediction.
    """
    blocks = len(tensors)
    heads = hparams.per_block("attention.head_count", blocks, [0] * blocks)
    heads_kv = hparams.per_block("attention.head_count_kv", blocks, heads)
    windows, notices = _windows(hparams, blocks)
    recurrent = _recurrent(hparams, tensors, nextn)
    compressions = hparams.per_block("attention.compress_ratios", blocks, [0] * blocks)
    cached = _cached_blocks(hparams, blocks)
    state_r, state_s = _states(hparams, max(heads, default=0))
    head_default = hparams.integer("embedding_length") // max(1, max(heads, default=0))
    shapes = []
    for index, names in enumerate(tensors):
        shape = CacheShape()
        has_place = index < cached and (heads_kv[index] > 0 or not any(recurrent))
        if has_place and (heads_kv[index] == 0 or _attends(names, recurrent[index])):
            shape = _attention(hparams, names, windows[index], compressions[index], head_default)
            shape = replace(shape, n_head_kv=heads_kv[index])
            if not shape.n_head_kv:
                shape = replace(shape, attention="none")
        if recurrent[index]:
            kind = "recurrent" if shape.attention == "none" else shape.attention
            shape = replace(shape, attention=kind, state_r=state_r, state_s=state_s)
        shapes.append(shape)
    return shapes, notices


def _attention(
    hparams: Hparams, names: Sequence[str], window: int, compression: int, head_default: int
) -> CacheShape:
    suffix = "_swa" if window else ""
    head_k = hparams.integer("attention.key_length", head_default)
    head_v = hparams.integer("attention.value_length", head_default)
    is_latent = hparams.architecture in architecture.K_ONLY or (
        hparams.has("attention.key_length_mla") and hparams.has("attention.value_length_mla")
    )
    shape = CacheShape(
        attention="mla" if is_latent else "swa" if window else "full",
        head_k=hparams.integer(f"attention.key_length{suffix}", head_k),
        head_v=0 if is_latent else hparams.integer(f"attention.value_length{suffix}", head_v),
        window=window,
        index_k=hparams.integer("attention.indexer.key_length") if _indexes(names) else 0,
        compression=compression,
    )
    return replace(shape, state_s=_compressor_state(shape))


def _compressor_state(shape: CacheShape) -> int:
    """Sums and scores of the tokens not yet compressed (llama.cpp's `llama-kv-cache-dsv4.cpp`).

    Blocks with an indexer overlap: they keep two stretches of rows of twice the width.
    """
    overlap = 2 if shape.index_k else 1
    rows = overlap * shape.compression
    return 2 * rows * overlap * (shape.head_k + shape.index_k)


def _attends(names: Sequence[str], is_recurrent: bool) -> bool:  # noqa: FBT001 - a predicate
    """Whether there are keys to cache; linear attention has `attn_qkv` but no cache of them."""
    prefixes = ("attn_k.", "attn_k_b", "attn_kv") if is_recurrent else ("attn_k", "attn_qkv")
    return any(name.startswith(prefixes) for name in names)


def _indexes(names: Sequence[str]) -> bool:
    """Whether a block has an indexer of its own; others use that of an earlier block."""
    return any(name.startswith("indexer") for name in names)


def _cached_blocks(hparams: Hparams, blocks: int) -> int:
    shared = hparams.integer("attention.shared_kv_layers")
    return min(blocks - shared, architecture.CACHED_BLOCKS.get(hparams.architecture, blocks))


def _windows(hparams: Hparams, blocks: int) -> tuple[list[int], list[str]]:
    """The window of each block; 0 where it sees everything."""
    arch = hparams.architecture
    rule = architecture.WINDOW_RULES.get(arch)
    window = hparams.integer("attention.sliding_window", rule.window if rule else 0)
    if window < 1 or arch in architecture.WINDOW_UNUSED:
        return [0] * blocks, []
    key = "attention.sliding_window_pattern"
    if hparams.is_list(key):
        return [window * (flag != 0) for flag in hparams.per_block(key, blocks, [0] * blocks)], []
    if rule is None and not hparams.has(key):
        notice = (
            f"{arch}: which blocks attend through the window of {window} tokens is not known; "
            "all are taken to keep the whole context"
        )
        return [0] * blocks, [notice]
    period = hparams.integer(key, rule.period if rule else 0)
    sees_all = 0 if rule and rule.full_first else period - 1
    return [window * (not period or i % period != sees_all) for i in range(blocks)], []


def _recurrent(hparams: Hparams, tensors: Sequence[Sequence[str]], nextn: int) -> list[bool]:
    blocks = len(tensors)
    key = "attention.recurrent_layers"
    if hparams.is_list(key):
        return [flag != 0 for flag in hparams.per_block(key, blocks, [0] * blocks)]
    interval = architecture.ATTENTION_INTERVALS.get(hparams.architecture)
    if interval:
        interval = max(1, hparams.integer("full_attention_interval", interval))
        return [(i + 1) % interval != 0 and i < blocks - nextn for i in range(blocks)]
    return [any(name.startswith(_RECURRENT_PREFIXES) for name in names) for names in tensors]


def _states(hparams: Hparams, heads: int) -> tuple[int, int]:
    """Elements of a recurrent block's R and S states, per sequence."""
    embd = hparams.integer("embedding_length")
    wkv = hparams.integer("wkv.head_size")
    if wkv:
        default = architecture.TOKEN_SHIFTS.get(hparams.architecture, 2)
        return embd * hparams.integer("token_shift_count", default), embd * wkv
    short = hparams.integer("shortconv.l_cache")
    if short:
        return embd * (short - 1), 0
    conv = hparams.integer("ssm.conv_kernel")
    kda = hparams.integer("kda.head_dim")
    if kda:
        return 3 * (conv - 1 if conv else 3) * heads * kda, heads * kda * kda
    if hparams.architecture == "minimax-01":
        size = hparams.integer("attention.key_length", embd // max(1, heads))
        return 0, heads * size * size
    inner, state = hparams.integer("ssm.inner_size"), hparams.integer("ssm.state_size")
    groups = hparams.integer("ssm.group_count")
    return max(0, conv - 1) * (inner + 2 * groups * state), inner * state
