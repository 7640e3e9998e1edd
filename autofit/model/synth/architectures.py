"""The architectures of synthesized models: their tensors and their metadata.

A size is a name in `named_sizes`, which derives it from the options of `autofit synth` in the
proportions of a published model. Tensors are those that `load_arch_tensors` in llama.cpp's
`src/models` requires (build 11434).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from autofit.model.synth.random_model import SynthSpec

# `matrix` and `narrow` have the type of `--type`, `expert` too unless its architecture has one.
# `narrow` has short rows, which a type with large blocks cannot store: it is q8_0 or f16 then.
# The others are f32: random numbers (`f32`, and small ones in `bias`), or a constant.
TensorKind = Literal["matrix", "expert", "narrow", "f32", "bias", "one", "minus_one"]


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor of a block: its name, its kind, and the names of its sizes, the row's first."""

    name: str
    kind: TensorKind
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An architecture as data.

    Attributes:
        sizes: metadata keys (without the architecture) with the name of their size.
        constants: metadata keys with their value.
        attention: the tensors of attention and of the norms.
        ffn: the tensors of the experts, or of a dense network.
        dense: the network of the first block if that is dense, else empty.
        recurrent: what replaces `attention` in all but every fourth block, if not empty.
        prediction: additional tensors of a last block for multi-token prediction, which the
            runtime counts and does not load; empty if there is no such block.
        expert_type: the type of the experts, or empty if it is that of the other matrices.
    """

    sizes: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, bool | int | float] = field(default_factory=dict)
    attention: tuple[Row, ...]
    ffn: tuple[Row, ...]
    dense: tuple[Row, ...] = ()
    recurrent: tuple[Row, ...] = ()
    prediction: tuple[Row, ...] = ()
    expert_type: str = ""

    def rows(self, block: int, layers: int) -> Iterator[Row]:
        """Yield the tensors of a block. Blocks from `layers` on are for multi-token prediction."""
        is_recurrent = self.recurrent and block < layers and (block + 1) % ATTENTION_INTERVAL
        yield from self.recurrent if is_recurrent else self.attention
        yield from self.dense if self.dense and block == 0 else self.ffn
        if block >= layers:
            yield from self.prediction


ATTENTION_INTERVAL = 4


def named_sizes(spec: SynthSpec) -> dict[str, int]:
    """Return all sizes by name; every architecture uses some of them."""
    query, rope, latent = spec.heads * spec.head_dim, spec.head_dim // 2, 4 * spec.head_dim
    return {
        "layers": spec.layers,
        "embd": spec.embd,
        "embd2": 2 * spec.embd,
        "ff": spec.ff,
        "ff_all": spec.ff * max(1, spec.used),
        "experts": spec.experts,
        "used": spec.used,
        "vocab": spec.vocab,
        "ctx": spec.ctx,
        "heads": spec.heads,
        "kv_heads": spec.kv_heads,
        "head": spec.head_dim,
        "half_head": spec.head_dim // 2,
        "quarter_head": spec.head_dim // 4,
        "query": query,
        "query2": 2 * query,
        "kv": spec.kv_heads * spec.head_dim,
        # DeepSeek-V2-Lite: a head of 128 has 64 more elements with positions; the latent has 512.
        "latent": latent,
        "key_row": latent + rope,
        "key": spec.head_dim + rope,
        "keys": spec.heads * (spec.head_dim + rope),
        # Qwen3-Next: for 16 heads of 256, 16 key heads and 32 value heads of 128.
        "value_heads": 2 * spec.heads,
        "value_heads2": 4 * spec.heads,
        "mixed": 2 * query,
        "kernel": 4,
    }


def _norms(*names: str) -> tuple[Row, ...]:
    return tuple(Row(f"{name}.weight", "one", ("embd",)) for name in names)


def _matrix(name: str, *shape: str) -> Row:
    return Row(f"{name}.weight", "matrix", shape)


def _biases(**sizes: str) -> tuple[Row, ...]:
    return tuple(Row(f"{name}.bias", "bias", (size,)) for name, size in sizes.items())


_PROJECTIONS = (
    _matrix("attn_q", "embd", "query"),
    _matrix("attn_k", "embd", "kv"),
    _matrix("attn_v", "embd", "kv"),
    _matrix("attn_output", "query", "embd"),
)
_HEAD_NORMS = (
    Row("attn_q_norm.weight", "one", ("head",)),
    Row("attn_k_norm.weight", "one", ("head",)),
)
_ROUTER = (Row("ffn_gate_inp.weight", "f32", ("embd", "experts")),)
_EXPERTS = (
    *_ROUTER,
    Row("ffn_gate_exps.weight", "expert", ("embd", "ff", "experts")),
    Row("ffn_up_exps.weight", "expert", ("embd", "ff", "experts")),
    Row("ffn_down_exps.weight", "expert", ("ff", "embd", "experts")),
)
_SHARED_EXPERT = (
    _matrix("ffn_gate_shexp", "embd", "ff"),
    _matrix("ffn_up_shexp", "embd", "ff"),
    _matrix("ffn_down_shexp", "ff", "embd"),
)


def _dense(width: str) -> tuple[Row, ...]:
    return (
        _matrix("ffn_gate", "embd", width),
        _matrix("ffn_up", "embd", width),
        _matrix("ffn_down", width, "embd"),
    )


_SIZES = {
    "context_length": "ctx",
    "embedding_length": "embd",
    "feed_forward_length": "ff_all",
    "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads",
    "attention.key_length": "head",
    "attention.value_length": "head",
    "rope.dimension_count": "head",
}
_EXPERT_SIZES = {
    "expert_count": "experts",
    "expert_used_count": "used",
    "expert_feed_forward_length": "ff",
}
_CONSTANTS = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6}
_SIGMOID = 2  # LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID
_ROUTED = {
    "expert_shared_count": 1,
    "expert_weights_scale": 1.0,
    "expert_weights_norm": True,
    "expert_gating_func": _SIGMOID,
    "leading_dense_block_count": 1,
}
_SELECTION_BIAS = _biases(exp_probs_b="experts")
_QWEN3 = (*_norms("attn_norm"), *_PROJECTIONS, *_HEAD_NORMS, *_norms("ffn_norm"))

ARCHITECTURES = {
    "qwen3moe": Architecture(
        sizes=_SIZES | _EXPERT_SIZES,
        constants=_CONSTANTS,
        attention=_QWEN3,
        ffn=_EXPERTS,
    ),
    "gpt-oss": Architecture(
        sizes=_SIZES | _EXPERT_SIZES,
        constants={**_CONSTANTS, "attention.sliding_window": 128},
        attention=(
            *_norms("attn_norm"),
            *_PROJECTIONS,
            *_biases(attn_q="query", attn_k="kv", attn_v="kv", attn_output="embd"),
            Row("attn_sinks.weight", "bias", ("heads",)),
            *_norms("post_attention_norm"),
        ),
        ffn=(
            *_EXPERTS,
            *_biases(ffn_gate_inp="experts"),
            Row("ffn_gate_exps.bias", "bias", ("ff", "experts")),
            Row("ffn_up_exps.bias", "bias", ("ff", "experts")),
            Row("ffn_down_exps.bias", "bias", ("embd", "experts")),
        ),
        expert_type="mxfp4",
    ),
    "deepseek2": Architecture(
        sizes={
            **_SIZES,
            **_EXPERT_SIZES,
            "attention.key_length": "key_row",
            "attention.value_length": "latent",
            "attention.key_length_mla": "key",
            "attention.value_length_mla": "head",
            "attention.kv_lora_rank": "latent",
            "rope.dimension_count": "half_head",
        },
        constants={
            **_CONSTANTS,
            **_ROUTED,
            "attention.head_count_kv": 1,
            "attention.q_lora_rank": 0,  # with 26 or 27 blocks llama.cpp assumes that
        },
        attention=(
            *_norms("attn_norm"),
            _matrix("attn_q", "embd", "keys"),
            _matrix("attn_kv_a_mqa", "embd", "key_row"),
            Row("attn_kv_a_norm.weight", "one", ("latent",)),
            Row("attn_k_b.weight", "narrow", ("head", "latent", "heads")),
            Row("attn_v_b.weight", "narrow", ("latent", "head", "heads")),
            _matrix("attn_output", "query", "embd"),
            *_norms("ffn_norm"),
        ),
        ffn=(*_EXPERTS, *_SELECTION_BIAS, *_SHARED_EXPERT),
        dense=_dense("ff_all"),
    ),
    "glm4moe": Architecture(
        sizes={**_SIZES, **_EXPERT_SIZES, "rope.dimension_count": "half_head"},
        constants={**_CONSTANTS, **_ROUTED, "nextn_predict_layers": 1},
        attention=(
            *_norms("attn_norm"),
            *_PROJECTIONS,
            *_biases(attn_q="query", attn_k="kv", attn_v="kv"),
            *_norms("post_attention_norm"),
        ),
        ffn=(*_EXPERTS, *_SELECTION_BIAS, *_SHARED_EXPERT),
        dense=_dense("ff_all"),
        prediction=(
            _matrix("nextn.eh_proj", "embd2", "embd"),
            *_norms("nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"),
        ),
    ),
    "qwen3next": Architecture(
        sizes={
            **_SIZES,
            **_EXPERT_SIZES,
            "expert_shared_feed_forward_length": "ff",
            "rope.dimension_count": "quarter_head",
            "ssm.conv_kernel": "kernel",
            "ssm.inner_size": "query",
            "ssm.state_size": "half_head",
            "ssm.time_step_rank": "value_heads",
            "ssm.group_count": "heads",
        },
        constants={**_CONSTANTS, "full_attention_interval": ATTENTION_INTERVAL},
        attention=(
            *_norms("attn_norm"),
            _matrix("attn_q", "embd", "query2"),
            *_PROJECTIONS[1:],
            *_HEAD_NORMS,
            *_norms("post_attention_norm"),
        ),
        recurrent=(
            *_norms("attn_norm"),
            _matrix("attn_qkv", "embd", "mixed"),
            _matrix("attn_gate", "embd", "query"),
            Row("ssm_conv1d.weight", "f32", ("kernel", "mixed")),
            Row("ssm_dt.bias", "bias", ("value_heads",)),
            Row("ssm_a", "minus_one", ("value_heads",)),  # a decay
            _matrix("ssm_ba", "embd", "value_heads2"),
            Row("ssm_norm.weight", "one", ("half_head",)),
            _matrix("ssm_out", "query", "embd"),
            *_norms("post_attention_norm"),
        ),
        ffn=(
            *_EXPERTS,
            Row("ffn_gate_inp_shexp.weight", "bias", ("embd",)),
            *_SHARED_EXPERT,
        ),
    ),
}
DENSE_NAME = "qwen3"
DENSE = Architecture(
    sizes={**_SIZES, "feed_forward_length": "ff"},
    constants=_CONSTANTS,
    attention=_QWEN3,
    ffn=_dense("ff"),
)
