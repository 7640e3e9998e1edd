"""Models in which most blocks are recurrent."""

from __future__ import annotations

from model_headers.header import (
    F32,
    Q6_K,
    Q8_0,
    Header,
    attention,
    dense_ffn,
    experts,
    model,
    shared_expert,
)


def _delta_net(header: Header, block: str, embd: int, *, fused_ba: bool) -> None:
    """Add a gated delta net of 16 key heads and 32 value heads of 128."""
    header.add(f"{block}.attn_norm.weight", embd)
    header.add(f"{block}.attn_qkv.weight", embd, 8192)
    header.add(f"{block}.attn_gate.weight", embd, 4096)
    header.add(f"{block}.ssm_conv1d.weight", 4, 8192, type_=F32)
    header.add(f"{block}.ssm_dt.bias", 32)
    header.add(f"{block}.ssm_a", 32)
    if fused_ba:
        header.add(f"{block}.ssm_ba.weight", embd, 64)
    else:
        header.add(f"{block}.ssm_beta.weight", embd, 32)
        header.add(f"{block}.ssm_alpha.weight", embd, 32)
    header.add(f"{block}.ssm_norm.weight", 128)
    header.add(f"{block}.ssm_out.weight", 4096, embd)


def _gated_attention(header: Header, block: str, embd: int) -> None:
    """Add 16 heads of 256, each with a gate of its own size, and 2 heads of K and V."""
    header.add(f"{block}.attn_norm.weight", embd)
    header.add(f"{block}.attn_q.weight", embd, 256 * 16 * 2)
    header.add(f"{block}.attn_k.weight", embd, 512)
    header.add(f"{block}.attn_v.weight", embd, 512)
    header.add(f"{block}.attn_output.weight", 4096, embd)
    header.add(f"{block}.attn_q_norm.weight", 256)
    header.add(f"{block}.attn_k_norm.weight", 256)


_HYBRID_KEYS = {
    "attention__head_count": 16,
    "attention__head_count_kv": 2,
    "attention__key_length": 256,
    "attention__value_length": 256,
    "rope__freq_base": 10000000.0,
    "rope__dimension_count": 64,
    "ssm__conv_kernel": 4,
    "ssm__inner_size": 4096,
    "ssm__state_size": 128,
    "ssm__time_step_rank": 32,
    "ssm__group_count": 16,
    "expert_feed_forward_length": 512,
    "expert_shared_feed_forward_length": 512,
}


def _hybrid_ffn(header: Header, block: str, embd: int, count: int, *, fused: bool) -> None:
    header.add(f"{block}.post_attention_norm.weight", embd)
    experts(header, block, embd, 512, count, fused=fused, norm=False)
    header.add(f"{block}.ffn_gate_inp_shexp.weight", embd)
    shared_expert(header, block, embd, 512)


def qwen3next() -> Header:
    """Return Qwen3-Next-80B-A3B: three of four layers are gated delta nets."""
    header = model(
        "qwen3next",
        layers=48,
        embd=2048,
        vocab=151936,
        context=262144,
        feed_forward_length=5120,
        expert_count=512,
        expert_used_count=10,
        full_attention_interval=4,
        **_HYBRID_KEYS,
    )
    header.add("output.weight", 2048, 151936, type_=Q6_K)
    for i in range(48):
        if (i + 1) % 4:
            _delta_net(header, f"blk.{i}", 2048, fused_ba=True)
        else:
            _gated_attention(header, f"blk.{i}", 2048)
        _hybrid_ffn(header, f"blk.{i}", 2048, 512, fused=False)
    return header


def qwen35moe() -> Header:
    """Return Qwen3.5-35B-A3B: hybrid, fused gate and up, one block for multi-token prediction."""
    header = model(
        "qwen35moe",
        layers=41,
        embd=2048,
        vocab=248320,
        context=262144,
        expert_count=256,
        expert_used_count=8,
        nextn_predict_layers=1,
        rope__dimension_sections=[11, 11, 10, 0],
        **_HYBRID_KEYS,
    )
    header.add("output.weight", 2048, 248320, type_=Q6_K)
    for i in range(41):
        if i == 40 or not (i + 1) % 4:
            _gated_attention(header, f"blk.{i}", 2048)
        else:
            _delta_net(header, f"blk.{i}", 2048, fused_ba=False)
        _hybrid_ffn(header, f"blk.{i}", 2048, 256, fused=True)
    header.add("blk.40.nextn.eh_proj.weight", 4096, 2048)
    header.add("blk.40.nextn.enorm.weight", 2048)
    header.add("blk.40.nextn.hnorm.weight", 2048)
    header.add("blk.40.nextn.shared_head_norm.weight", 2048)
    return header


def _mamba2(
    header: Header, block: str, embd: int, *, inner: int, state: int, heads: int, groups: int
) -> None:
    mixed = inner + 2 * groups * state
    header.add(f"{block}.ssm_in.weight", embd, inner + mixed + heads, type_=Q8_0)
    header.add(f"{block}.ssm_conv1d.weight", 4, mixed, type_=F32)
    header.add(f"{block}.ssm_conv1d.bias", mixed)
    header.add(f"{block}.ssm_dt.bias", heads)
    header.add(f"{block}.ssm_a", 1, heads, type_=F32)
    header.add(f"{block}.ssm_d", 1, heads, type_=F32)
    header.add(f"{block}.ssm_norm.weight", inner // groups, groups, type_=F32)
    header.add(f"{block}.ssm_out.weight", inner, embd, type_=Q8_0)


def nemotron3_nano() -> Header:
    """Return Nemotron 3 Nano 30B-A3B: a block is recurrent, or attends, or is experts alone."""
    kinds = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    header = model(
        "nemotron_h_moe",
        layers=52,
        embd=2688,
        vocab=131072,
        context=1048576,
        feed_forward_length=[1856 if kind == "E" else 0 for kind in kinds],
        attention__head_count=32,
        attention__head_count_kv=[2 if kind == "*" else 0 for kind in kinds],
        attention__key_length=128,
        attention__value_length=128,
        rope__dimension_count=128,
        ssm__conv_kernel=4,
        ssm__inner_size=4096,
        ssm__state_size=128,
        ssm__time_step_rank=64,
        ssm__group_count=8,
        expert_count=128,
        expert_used_count=6,
        expert_shared_count=1,
        expert_feed_forward_length=1856,
        expert_shared_feed_forward_length=3712,
        expert_weights_norm=True,
        expert_weights_scale=2.5,
        attention__layer_norm_epsilon=1e-5,
    )
    header.add("output.weight", 2688, 131072, type_=Q8_0)
    for i, kind in enumerate(kinds):
        block = f"blk.{i}"
        if kind == "M":
            header.add(f"{block}.attn_norm.weight", 2688)
            _mamba2(header, block, 2688, inner=4096, state=128, heads=64, groups=8)
        elif kind == "*":
            attention(header, block, 2688, 32, 2, 128, type_=Q8_0)
        else:
            header.add(f"{block}.attn_norm.weight", 2688)
            header.add(f"{block}.ffn_gate_inp.weight", 2688, 128, type_=F32)
            header.add(f"{block}.exp_probs_b.bias", 128)
            header.add(f"{block}.ffn_up_exps.weight", 2688, 1856, 128, type_=Q8_0)
            header.add(f"{block}.ffn_down_exps.weight", 1856, 2688, 128, type_=Q8_0)
            header.add(f"{block}.ffn_up_shexp.weight", 2688, 3712, type_=Q8_0)
            header.add(f"{block}.ffn_down_shexp.weight", 3712, 2688, type_=Q8_0)
    return header


def lfm2_8b() -> Header:
    """Return LFM2-8B-A1B: short convolutions, attention in six of 24 blocks, two dense blocks."""
    attending = {2, 6, 10, 14, 18, 21}
    header = model(
        "lfm2moe",
        layers=24,
        embd=2048,
        vocab=65536,
        context=128000,
        feed_forward_length=7168,
        leading_dense_block_count=2,
        attention__head_count=32,
        attention__head_count_kv=[8 if i in attending else 0 for i in range(24)],
        rope__freq_base=1000000.0,
        shortconv__l_cache=3,
        expert_count=32,
        expert_used_count=4,
        expert_feed_forward_length=1792,
        expert_gating_func=2,
    )
    header.tensors["token_embd_norm.weight"] = header.tensors.pop("output_norm.weight")
    for i in range(24):
        block = f"blk.{i}"
        if i in attending:
            attention(header, block, 2048, 32, 8, 64)
            header.add(f"{block}.attn_q_norm.weight", 64)
            header.add(f"{block}.attn_k_norm.weight", 64)
        else:
            header.add(f"{block}.attn_norm.weight", 2048)
            header.add(f"{block}.shortconv.conv.weight", 3, 2048, type_=F32)
            header.add(f"{block}.shortconv.in_proj.weight", 2048, 6144)
            header.add(f"{block}.shortconv.out_proj.weight", 2048, 2048)
        if i < 2:
            dense_ffn(header, block, 2048, 7168)
        else:
            experts(header, block, 2048, 1792, 32)
            header.add(f"{block}.exp_probs_b.bias", 32)
    return header


def falcon_h1() -> Header:
    """Return Falcon-H1-0.5B: every block attends and is recurrent."""
    header = model(
        "falcon-h1",
        layers=36,
        embd=1024,
        vocab=32784,
        context=16384,
        feed_forward_length=2048,
        attention__head_count=8,
        attention__head_count_kv=2,
        attention__key_length=64,
        attention__value_length=64,
        ssm__conv_kernel=4,
        ssm__inner_size=1536,
        ssm__state_size=128,
        ssm__time_step_rank=24,
        ssm__group_count=1,
    )
    header.add("output.weight", 1024, 32784, type_=Q6_K)
    for i in range(36):
        attention(header, f"blk.{i}", 1024, 8, 2, 64)
        _mamba2(header, f"blk.{i}", 1024, inner=1536, state=128, heads=24, groups=1)
        header.add(f"blk.{i}.ffn_norm", 1024)  # llama.cpp asks for it without a suffix
        dense_ffn(header, f"blk.{i}", 1024, 2048, norm=False)
    return header


def mamba2() -> Header:
    """Return Mamba-2 2.7B: no attention at all."""
    header = model(
        "mamba2",
        layers=64,
        embd=2560,
        vocab=50288,
        context=1048576,
        feed_forward_length=0,
        attention__head_count=0,
        ssm__conv_kernel=4,
        ssm__inner_size=5120,
        ssm__state_size=128,
        ssm__time_step_rank=80,
        ssm__group_count=1,
    )
    for i in range(64):
        header.add(f"blk.{i}.attn_norm.weight", 2560)
        _mamba2(header, f"blk.{i}", 2560, inner=5120, state=128, heads=80, groups=1)
    return header
