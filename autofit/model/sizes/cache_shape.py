"""The cache of each block in elements: attention per token, recurrent states per sequence.

Follows llama.cpp's `llama-hparams.cpp`, `llama-kv-cache.cpp` and `llama-memory-recurrent.cpp`. No
header contains the rules by architecture. They are from `load_arch_hparams` in the files of
`src/models` (build 11434).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autofit.model.gguf.hparams import Hparams

AttentionKind = Literal["full", "swa", "mla", "recurrent", "none"]

_RECURRENT_PREFIXES = ("ssm_", "shortconv.", "time_mix_")


@dataclass(frozen=True, slots=True)
class _WindowRule:
    """The blocks of an architecture that attend through a sliding window.

    The last block of every `period` sees all tokens, or the first if `full_first`. With a
    period of 0 no block does. `window` applies if the file has none.
    """

    period: int
    full_first: bool = False
    window: int = 0


_WINDOW_RULES = {
    "afmoe": _WindowRule(4),
    "cohere2": _WindowRule(4),
    "cohere2moe": _WindowRule(4, full_first=True),
    "deepseek4": _WindowRule(0),
    "exaone-moe": _WindowRule(4),
    "exaone4": _WindowRule(4),
    "gemma-embedding": _WindowRule(6),
    "gemma2": _WindowRule(2, window=4096),
    "gemma3": _WindowRule(6),
    "gemma3n": _WindowRule(5),
    "gpt-oss": _WindowRule(2),
    "laguna": _WindowRule(4, full_first=True),
    "llama4": _WindowRule(4, window=8192),
    "mellum": _WindowRule(4),
    "modern-bert": _WindowRule(3, full_first=True),
    "muse-glimmer": _WindowRule(4),
    "olmo2": _WindowRule(4),
    "plamo3": _WindowRule(8),
    "smallthinker": _WindowRule(4, full_first=True, window=4096),
}
# The file has a window that llama.cpp does not use.
_WINDOW_UNUSED = frozenset({"phi3"})
# Values are part of the keys: only K is cached.
_K_ONLY = frozenset({"deepseek4"})
# Every n-th block attends and the others are recurrent, if the file has no list.
_ATTENTION_INTERVALS = {
    "minimax-01": 8,
    "qwen35": 4,
    "qwen35moe": 4,
    "qwen3next": 4,
    "qwen4exp": 4,
}
# Later blocks share the cache of these first ones.
_CACHED_BLOCKS = {"gemma3n": 20}
# Recurrent states per token shift, if the file has none.
_TOKEN_SHIFTS = {"rwkv6": 2, "rwkv7": 2, "rwkv6qwen2": 1, "arwkv7": 1}

_KNOWN_NAMES = """
afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bitnet bloom chameleon chatglm
codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr
deepseek32 deepseek4 dots1 dream ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon falcon-h1
gemma gemma2 gemma3 gemma3n gemma4 glm-dsa glm4 glm4moe gpt-oss gpt2 gptj gptneox granite
granitehybrid granitemoe grok grovemoe hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais
jais2 jamba kimi-linear laguna lfm2 lfm2moe llada llada-moe llama llama-embed llama4 maincoder
mamba mamba2 mellum mimo2 minicpm minicpm3 minimax-01 minimax-m2 mistral3 mistral4 mpt
muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe olmo olmo2 olmoe openelm orion paddleocr
pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 plm qwen qwen2 qwen2moe qwen2vl qwen3 qwen35
qwen35moe qwen3moe qwen3next qwen3vl qwen3vlmoe refact rnd1 rwkv6 rwkv6qwen2 rwkv7 seed_oss
smallthinker smollm3 stablelm starcoder starcoder2 step35 xverse
"""
# The cache of these architectures follows from the rules here; others get a notice.
KNOWN_ARCHITECTURES = frozenset(_KNOWN_NAMES.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """The cache of one block, in elements.

    `head_k` and `head_v` are for one KV head and one token; `head_v` is 0 if only K is cached. A
    block without KV heads can still have a place in the cache, and then has head sizes. `index_k`
    is for one token of an indexer. With a `window`, that many tokens are cached instead of all.
    With both a `window` and a `compression`, all tokens are cached as well, `compression` tokens
    in one row. `state_r` and `state_s` are f32 states of one sequence. A block can both attend and
    be recurrent.
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


def cache_shapes(
    hparams: Hparams, tensors: Sequence[Sequence[str]], nextn: int
) -> tuple[list[CacheShape], list[str]]:
    """Return the cache of every block, and notices about sizes that the header does not give.

    Args:
        hparams: the model's metadata.
        tensors: the names of each block's tensors, without `blk.N.`.
        nextn: the number of blocks at the end that are for multi-token prediction.
    """
    blocks = len(tensors)
    heads = hparams.per_block("attention.head_count", blocks, [0] * blocks)
    heads_kv = hparams.per_block("attention.head_count_kv", blocks, heads)
    windows, notices = _windows(hparams, blocks)
    recurrent = _recurrent(hparams, tensors, nextn)
    compressions = hparams.per_block("attention.compress_ratios", blocks, [0] * blocks)
    shared = hparams.integer("attention.shared_kv_layers")
    cached = min(blocks - shared, _CACHED_BLOCKS.get(hparams.architecture, blocks))
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
    is_latent = hparams.architecture in _K_ONLY or (
        hparams.has("attention.key_length_mla") and hparams.has("attention.value_length_mla")
    )
    # A block without an indexer uses that of an earlier block.
    has_indexer = any(name.startswith("indexer") for name in names)
    shape = CacheShape(
        attention="mla" if is_latent else "swa" if window else "full",
        head_k=hparams.integer(f"attention.key_length{suffix}", head_k),
        head_v=0 if is_latent else hparams.integer(f"attention.value_length{suffix}", head_v),
        window=window,
        index_k=hparams.integer("attention.indexer.key_length") if has_indexer else 0,
        compression=compression,
    )
    # Sums and scores of the tokens not yet compressed (`llama-kv-cache-dsv4.cpp`). The rows of
    # a block with an indexer overlap: it has twice as many, of twice the width.
    overlap = 2 if shape.index_k else 1
    state_s = 2 * overlap * compression * overlap * (shape.head_k + shape.index_k)
    return replace(shape, state_s=state_s)


def _attends(names: Sequence[str], is_recurrent: bool) -> bool:  # noqa: FBT001 - a predicate
    """Return whether a block caches keys; linear attention has `attn_qkv` and caches none."""
    prefixes = ("attn_k.", "attn_k_b", "attn_kv") if is_recurrent else ("attn_k", "attn_qkv")
    return any(name.startswith(prefixes) for name in names)


def _windows(hparams: Hparams, blocks: int) -> tuple[list[int], list[str]]:
    """Return the window of each block, or 0 if it sees all tokens."""
    arch = hparams.architecture
    rule = _WINDOW_RULES.get(arch)
    window = hparams.integer("attention.sliding_window", rule.window if rule else 0)
    if window < 1 or arch in _WINDOW_UNUSED:
        return [0] * blocks, []
    key = "attention.sliding_window_pattern"
    if hparams.is_list(key):
        return [window * (flag != 0) for flag in hparams.per_block(key, blocks, [0] * blocks)], []
    if rule is None and not hparams.has(key):
        notice = (
            f"{arch}: the blocks that use the window of {window} tokens are unknown; the estimate "
            "assumes that all cache the whole context"
        )
        return [0] * blocks, [notice]
    period = hparams.integer(key, rule.period if rule else 0)
    sees_all = 0 if rule and rule.full_first else period - 1
    return [window * (not period or i % period != sees_all) for i in range(blocks)], []


def _recurrent(hparams: Hparams, tensors: Sequence[Sequence[str]], nextn: int) -> list[bool]:
    """Return whether each block is recurrent."""
    blocks = len(tensors)
    key = "attention.recurrent_layers"
    if hparams.is_list(key):
        return [flag != 0 for flag in hparams.per_block(key, blocks, [0] * blocks)]
    interval = _ATTENTION_INTERVALS.get(hparams.architecture)
    if interval:
        interval = max(1, hparams.integer("full_attention_interval", interval))
        return [(i + 1) % interval != 0 and i < blocks - nextn for i in range(blocks)]
    return [any(name.startswith(_RECURRENT_PREFIXES) for name in names) for names in tensors]


def _states(hparams: Hparams, heads: int) -> tuple[int, int]:
    """Return the elements of a recurrent block's R and S states for one sequence."""
    embd = hparams.integer("embedding_length")
    wkv = hparams.integer("wkv.head_size")
    if wkv:
        default = _TOKEN_SHIFTS.get(hparams.architecture, 2)
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
