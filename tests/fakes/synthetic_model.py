"""Invents models: the tensors and metadata of a mixture-of-experts transformer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from fakes.model import TYPE_IDS, TYPES, Model, Tensor


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that make a model."""

    layers: int = 40
    experts: int = 128
    used: int = 8
    embd: int = 2048
    ff: int = 768
    heads: int = 16
    kv_heads: int = 2
    head_dim: int = 128
    vocab: int = 4096
    context: int = 262144
    expert_type: str = "q4_K"
    down_type: str = "q4_K"
    rest_type: str = "q8_0"
    embd_type: str = "q8_0"
    output_type: str = "q6_K"
    dense_layers: int = 0  # leading blocks without experts
    dense_ff: int = 8192
    shared_ff: int = 0  # the width of an expert that every token uses
    attention_interval: int = 0  # only every n-th block has a KV cache
    varied_down: bool = False  # some layers carry wider down tensors, as real mixes do


def build_model(shape: ModelShape, name: str = "synthetic") -> Model:
    """A model of this shape, with the architecture that has such tensors."""
    tensors = [
        Tensor("token_embd.weight", (shape.embd, shape.vocab), TYPE_IDS[shape.embd_type]),
        Tensor("output_norm.weight", (shape.embd,), 0),
        Tensor("output.weight", (shape.embd, shape.vocab), TYPE_IDS[shape.output_type]),
    ]
    for index in range(shape.layers):
        tensors += _block(shape, index)
    return Model.from_tensors(_metadata(shape, name), tensors)


def _architecture(shape: ModelShape) -> str:
    if shape.attention_interval:
        return "qwen35moe"
    return "glm4moe" if shape.dense_layers or shape.shared_ff else "qwen3moe"


def _metadata(shape: ModelShape, name: str) -> dict[str, Any]:
    arch = _architecture(shape)
    values: dict[str, Any] = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.embd,
        "feed_forward_length": shape.dense_ff,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "expert_count": shape.experts,
        "expert_used_count": shape.used,
        "expert_feed_forward_length": shape.ff,
    }
    if shape.dense_layers:
        values["leading_dense_block_count"] = shape.dense_layers
    if shape.shared_ff:
        values["expert_shared_count"] = 1
        values["expert_shared_feed_forward_length"] = shape.shared_ff
    if shape.attention_interval:
        values |= {
            "full_attention_interval": shape.attention_interval,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 2 * shape.embd,
            "ssm.state_size": 128,
            "ssm.group_count": 16,
            "ssm.time_step_rank": 32,
        }
    return {
        "general.architecture": arch,
        "general.name": name,
        **{f"{arch}.{key}": value for key, value in values.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(shape.vocab)],
        "tokenizer.ggml.eos_token_id": shape.vocab - 1,
        "tokenizer.ggml.bos_token_id": shape.vocab - 2,
    }


def _is_recurrent(shape: ModelShape, index: int) -> bool:
    return bool(shape.attention_interval) and (index + 1) % shape.attention_interval != 0


def _block(shape: ModelShape, index: int) -> list[Tensor]:
    rest, prefix = TYPE_IDS[shape.rest_type], f"blk.{index}."
    embd = shape.embd
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if _is_recurrent(shape, index):
        attention = [
            ("attn_qkv.weight", (embd, 4 * embd), rest),
            ("attn_gate.weight", (embd, 2 * embd), rest),
            ("ssm_out.weight", (2 * embd, embd), rest),
        ]
    else:
        attention = [
            ("attn_q.weight", (embd, queries), rest),
            ("attn_k.weight", (embd, keys), rest),
            ("attn_v.weight", (embd, keys), rest),
            ("attn_output.weight", (queries, embd), rest),
            ("attn_q_norm.weight", (shape.head_dim,), 0),
            ("attn_k_norm.weight", (shape.head_dim,), 0),
        ]
    norms = [("attn_norm.weight", (embd,), 0), ("ffn_norm.weight", (embd,), 0)]
    tensors = [*attention, *norms, *_feed_forward(shape, index)]
    return [Tensor(prefix + name, dims, kind) for name, dims, kind in tensors]


def _feed_forward(shape: ModelShape, index: int) -> list[tuple[str, tuple[int, ...], int]]:
    embd, rest = shape.embd, TYPE_IDS[shape.rest_type]
    if index < shape.dense_layers:
        wide = (embd, shape.dense_ff)
        return [
            ("ffn_gate.weight", wide, rest),
            ("ffn_up.weight", wide, rest),
            ("ffn_down.weight", wide[::-1], rest),
        ]
    kind, down = TYPE_IDS[shape.expert_type], TYPE_IDS[shape.down_type]
    if shape.varied_down and index % 3 == 0:
        down = TYPE_IDS["q6_K"]
    tensors: list[tuple[str, tuple[int, ...], int]] = [
        ("ffn_gate_inp.weight", (embd, shape.experts), 0),
        ("ffn_gate_exps.weight", (embd, shape.ff, shape.experts), kind),
        ("ffn_up_exps.weight", (embd, shape.ff, shape.experts), kind),
        ("ffn_down_exps.weight", (shape.ff, embd, shape.experts), down),
    ]
    if shape.shared_ff:
        tensors += [
            ("ffn_gate_shexp.weight", (embd, shape.shared_ff), rest),
            ("ffn_up_shexp.weight", (embd, shape.shared_ff), rest),
            ("ffn_down_shexp.weight", (shape.shared_ff, embd), rest),
        ]
    return tensors


# (layers, experts, used, embd, ff, heads, kv_heads, head_dim), after models people run.
_FAMILIES = (
    (48, 128, 8, 2048, 768, 32, 4, 128),
    (40, 256, 8, 2048, 512, 16, 2, 256),
    (36, 128, 4, 2880, 2816, 64, 8, 64),
    (46, 128, 8, 4096, 1536, 96, 8, 128),
    (28, 64, 6, 2048, 1408, 16, 16, 128),
    (60, 160, 8, 3072, 1536, 48, 8, 128),
    (48, 512, 10, 2048, 512, 16, 2, 256),
    (94, 128, 8, 4096, 1536, 64, 4, 128),
    (27, 64, 6, 2048, 1024, 16, 8, 128),
)
_TYPES = ("q4_K", "q4_K", "q3_K", "q5_K", "q8_0", "mxfp4")
_MIB = 1024 * 1024
_FEWEST_LAYERS, _MOST_LAYERS = 20, 96


def random_model(seed: int, vram_mib: float, *, least: float = 1.15, most: float = 2.6) -> Model:
    """A model whose experts ask for `least` to `most` times the device memory.

    The same seed and memory give the same model.
    """
    rng = random.Random(f"model {seed}")
    size_mib = vram_mib * rng.uniform(least, most)
    reachable = [
        (family, kind, round(size_mib / layer_mib))
        for family in _FAMILIES
        for kind in _TYPES
        if (layer_mib := _expert_mib(family, kind))
        and _FEWEST_LAYERS <= size_mib / layer_mib <= _MOST_LAYERS
    ]
    family, kind, layers = rng.choice(reachable) if reachable else _nearest(size_mib)
    _, experts, used, embd, ff, heads, kv_heads, head_dim = family
    is_hybrid = rng.random() < 0.3
    dense = 0 if is_hybrid else rng.choice((0, 0, 0, 1, 3))
    shape = ModelShape(
        layers=layers + dense, experts=experts, used=used, embd=embd, ff=ff, heads=heads,
        kv_heads=kv_heads, head_dim=head_dim, dense_layers=dense,
        shared_ff=ff if dense else 0, attention_interval=4 if is_hybrid else 0,
        expert_type=kind, down_type=kind,
        varied_down=kind == "q4_K" and rng.random() < 0.5,
    )  # fmt: skip
    return build_model(shape, name=f"synthetic-{seed}")


def _expert_mib(family: tuple[int, ...], kind: str) -> float:
    """The experts of one layer."""
    _, experts, _, embd, ff, *_ = family
    _, block, nbytes = TYPES[TYPE_IDS[kind]]
    return 3.0 * embd * ff * experts / block * nbytes / _MIB


def _nearest(size_mib: float) -> tuple[tuple[int, ...], str, int]:
    """For very little or very much memory: the smallest or largest model there is."""
    order = sorted(_FAMILIES, key=lambda family: _expert_mib(family, "q4_K"))
    family = order[0] if size_mib < _FEWEST_LAYERS * _expert_mib(order[0], "q4_K") else order[-1]
    layers = round(size_mib / _expert_mib(family, "q4_K"))
    return family, "q4_K", min(_MOST_LAYERS, max(_FEWEST_LAYERS, layers))
