"""Models that attend in every block."""

from __future__ import annotations

from model_headers.header import (
    F32,
    MXFP4,
    Q6_K,
    Q8_0,
    Header,
    attention,
    dense_ffn,
    experts,
    model,
    shared_expert,
)


def llama_8b() -> Header:
    """Return Llama 3.1 8B: dense, grouped heads."""
    header = model(
        "llama",
        layers=32,
        embd=4096,
        vocab=128256,
        context=131072,
        feed_forward_length=14336,
        attention__head_count=32,
        attention__head_count_kv=8,
        rope__dimension_count=128,
        rope__freq_base=500000.0,
    )
    header.add("output.weight", 4096, 128256, type_=Q6_K)
    header.add("rope_freqs.weight", 64)
    for i in range(32):
        attention(header, f"blk.{i}", 4096, 32, 8, 128)
        dense_ffn(header, f"blk.{i}", 4096, 14336)
    return header


def mixtral() -> Header:
    """Return Mixtral 8x7B: architecture llama with experts."""
    header = model(
        "llama",
        layers=32,
        embd=4096,
        vocab=32000,
        context=32768,
        feed_forward_length=14336,
        attention__head_count=32,
        attention__head_count_kv=8,
        rope__dimension_count=128,
        expert_count=8,
        expert_used_count=2,
    )
    header.add("output.weight", 4096, 32000, type_=Q6_K)
    for i in range(32):
        attention(header, f"blk.{i}", 4096, 32, 8, 128)
        experts(header, f"blk.{i}", 4096, 14336, 8)
    return header


def qwen3moe() -> Header:
    """Return Qwen3-30B-A3B."""
    header = model(
        "qwen3moe",
        layers=48,
        embd=2048,
        vocab=151936,
        context=40960,
        feed_forward_length=6144,
        attention__head_count=32,
        attention__head_count_kv=4,
        attention__key_length=128,
        attention__value_length=128,
        rope__freq_base=1000000.0,
        expert_count=128,
        expert_used_count=8,
        expert_feed_forward_length=768,
    )
    header.add("output.weight", 2048, 151936, type_=Q6_K)
    for i in range(48):
        attention(header, f"blk.{i}", 2048, 32, 4, 128)
        header.add(f"blk.{i}.attn_q_norm.weight", 128)
        header.add(f"blk.{i}.attn_k_norm.weight", 128)
        experts(header, f"blk.{i}", 2048, 768, 128)
    return header


def gpt_oss_20b() -> Header:
    """Return gpt-oss-20b: windowed attention in every other layer, mxfp4 experts with biases."""
    header = model(
        "gpt-oss",
        layers=24,
        embd=2880,
        vocab=201088,
        context=131072,
        feed_forward_length=2880,
        attention__head_count=64,
        attention__head_count_kv=8,
        attention__key_length=64,
        attention__value_length=64,
        attention__sliding_window=128,
        rope__freq_base=150000.0,
        expert_count=32,
        expert_used_count=4,
        expert_feed_forward_length=2880,
    )
    header.add("output.weight", 2880, 201088, type_=Q8_0)
    for i in range(24):
        block = f"blk.{i}"
        attention(header, block, 2880, 64, 8, 64, type_=Q8_0)
        for part, length in (("q", 4096), ("k", 512), ("v", 512), ("output", 2880)):
            header.add(f"{block}.attn_{part}.bias", length)
        header.add(f"{block}.attn_sinks.weight", 64)
        header.add(f"{block}.post_attention_norm.weight", 2880)
        experts(header, block, 2880, 2880, 32, type_=MXFP4, norm=False)
        header.add(f"{block}.ffn_gate_inp.bias", 32)
        for part in ("gate", "up", "down"):
            header.add(f"{block}.ffn_{part}_exps.bias", 2880, 32, type_=F32)
    return header


def glm45_air() -> Header:
    """Return GLM-4.5-Air: one leading dense block, shared expert, a nextn block at the end."""
    header = model(
        "glm4moe",
        layers=47,
        embd=4096,
        vocab=151552,
        context=131072,
        feed_forward_length=10944,
        leading_dense_block_count=1,
        attention__head_count=96,
        attention__head_count_kv=8,
        attention__key_length=128,
        attention__value_length=128,
        rope__dimension_count=64,
        rope__freq_base=1000000.0,
        expert_count=128,
        expert_used_count=8,
        expert_shared_count=1,
        expert_feed_forward_length=1408,
        expert_weights_scale=1.0,
        expert_weights_norm=True,
        expert_gating_func=2,
        nextn_predict_layers=1,
    )
    header.add("output.weight", 4096, 151552, type_=Q6_K)
    for i in range(47):
        block = f"blk.{i}"
        attention(header, block, 4096, 96, 8, 128)
        for part, length in (("q", 96 * 128), ("k", 1024), ("v", 1024)):
            header.add(f"{block}.attn_{part}.bias", length)
        header.add(f"{block}.post_attention_norm.weight", 4096)
        if i < 1:
            dense_ffn(header, block, 4096, 10944, norm=False)
        else:
            experts(header, block, 4096, 1408, 128, type_=Q8_0, norm=False)
            header.add(f"{block}.exp_probs_b.bias", 128)
            for part in ("gate", "up"):
                header.add(f"{block}.ffn_{part}_shexp.weight", 4096, 1408)
            header.add(f"{block}.ffn_down_shexp.weight", 1408, 4096, type_=Q8_0)
    header.add("blk.46.nextn.eh_proj.weight", 8192, 4096)
    header.add("blk.46.nextn.enorm.weight", 4096)
    header.add("blk.46.nextn.hnorm.weight", 4096)
    header.add("blk.46.nextn.embed_tokens.weight", 4096, 151552)
    header.add("blk.46.nextn.shared_head_head.weight", 4096, 151552)
    header.add("blk.46.nextn.shared_head_norm.weight", 4096)
    # Rows of 10944 and 1408 are no multiple of 256.
    header.tensors["blk.0.ffn_down.weight"] = (Q8_0, (10944, 4096))
    return header


def llama4_scout() -> Header:
    """Return Llama 4 Scout: chunked attention in three of four layers, a shared expert."""
    header = model(
        "llama4",
        layers=48,
        embd=5120,
        vocab=202048,
        context=10485760,
        feed_forward_length=16384,
        attention__head_count=40,
        attention__head_count_kv=8,
        attention__key_length=128,
        attention__value_length=128,
        rope__dimension_count=128,
        rope__freq_base=500000.0,
        expert_count=16,
        expert_used_count=1,
        expert_feed_forward_length=8192,
        interleave_moe_layer_step=1,
    )
    header.add("output.weight", 5120, 202048, type_=Q6_K)
    for i in range(48):
        attention(header, f"blk.{i}", 5120, 40, 8, 128)
        experts(header, f"blk.{i}", 5120, 8192, 16)
        shared_expert(header, f"blk.{i}", 5120, 8192)
    return header


def gemma2_9b() -> Header:
    """Return Gemma 2 9B: a window in every other layer, output tied to the embedding."""
    header = model(
        "gemma2",
        layers=42,
        embd=3584,
        vocab=256000,
        context=8192,
        feed_forward_length=14336,
        attention__head_count=16,
        attention__head_count_kv=8,
        attention__key_length=256,
        attention__value_length=256,
        attention__sliding_window=4096,
    )
    for i in range(42):
        attention(header, f"blk.{i}", 3584, 16, 8, 256)
        header.add(f"blk.{i}.post_attention_norm.weight", 3584)
        dense_ffn(header, f"blk.{i}", 3584, 14336)
        header.add(f"blk.{i}.post_ffw_norm.weight", 3584)
    return header


def gemma3_block(
    header: Header, block: str, *, embd: int, ff: int, heads: int, kv: int, size: int
) -> None:
    """Add a block with norms before and after both of its halves."""
    attention(header, block, embd, heads, kv, size)
    header.add(f"{block}.attn_q_norm.weight", size)
    header.add(f"{block}.attn_k_norm.weight", size)
    header.add(f"{block}.post_attention_norm.weight", embd)
    dense_ffn(header, block, embd, ff)
    header.add(f"{block}.post_ffw_norm.weight", embd)


def gemma3_27b() -> Header:
    """Return Gemma 3 27B: windows in five of six layers, tied output."""
    header = model(
        "gemma3",
        layers=62,
        embd=5376,
        vocab=262144,
        context=131072,
        feed_forward_length=21504,
        attention__head_count=32,
        attention__head_count_kv=16,
        attention__key_length=128,
        attention__value_length=128,
        attention__sliding_window=1024,
        rope__freq_base=1000000.0,
    )
    for i in range(62):
        gemma3_block(header, f"blk.{i}", embd=5376, ff=21504, heads=32, kv=16, size=128)
    return header


def gemma4_26b() -> Header:
    """Return Gemma 4 26B-A4B: a list of windows, other head sizes without one."""
    windowed = [bool((i + 1) % 6) for i in range(30)]
    header = model(
        "gemma4",
        layers=30,
        embd=2816,
        vocab=262144,
        context=262144,
        feed_forward_length=2112,
        attention__head_count=16,
        attention__head_count_kv=[8 if window else 2 for window in windowed],
        attention__key_length=512,
        attention__value_length=512,
        attention__key_length_swa=256,
        attention__value_length_swa=256,
        attention__sliding_window=1024,
        attention__sliding_window_pattern=windowed,
        attention__shared_kv_layers=0,
        embedding_length_per_layer_input=0,
        rope__dimension_count=512,
        rope__dimension_count_swa=256,
        expert_count=128,
        expert_used_count=8,
        expert_feed_forward_length=704,
    )
    header.add("rope_freqs.weight", 256)
    for i, window in enumerate(windowed):
        block = f"blk.{i}"
        size = 256 if window else 512
        attention(header, block, 2816, 16, 8 if window else 2, size)
        header.add(f"{block}.attn_q_norm.weight", size)
        header.add(f"{block}.attn_k_norm.weight", size)
        header.add(f"{block}.post_attention_norm.weight", 2816)
        header.add(f"{block}.ffn_gate.weight", 2816, 2112)
        header.add(f"{block}.ffn_up.weight", 2816, 2112)
        header.add(f"{block}.ffn_down.weight", 2112, 2816, type_=Q8_0)
        experts(header, block, 2816, 704, 128, type_=Q8_0, fused=True)
        header.add(f"{block}.ffn_gate_inp.scale", 2816)
        for norm in ("post_ffw_norm", "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
            header.add(f"{block}.{norm}.weight", 2816)
    return header


def deci_uneven() -> Header:
    """Return a model like Nemotron-Super-49B: heads differ by block, some blocks have none."""
    heads_kv = [(8, 0, 4, 2)[i % 4] for i in range(16)]
    header = model(
        "deci",
        layers=16,
        embd=8192,
        vocab=128256,
        context=131072,
        feed_forward_length=[(28672, 14336)[i % 2] for i in range(16)],
        attention__head_count=[64 if kv else 0 for kv in heads_kv],
        attention__head_count_kv=heads_kv,
        attention__key_length=128,
        attention__value_length=128,
        rope__dimension_count=128,
    )
    header.add("output.weight", 8192, 128256, type_=Q6_K)
    header.add("rope_freqs.weight", 64)
    for i, kv in enumerate(heads_kv):
        if kv:
            attention(header, f"blk.{i}", 8192, 64, kv, 128)
        dense_ffn(header, f"blk.{i}", 8192, (28672, 14336)[i % 2])
    return header
