"""Models with latent attention (MLA) and its descendants."""

from __future__ import annotations

from model_headers.header import (
    F32,
    I32,
    MXFP4,
    Q6_K,
    Q8_0,
    Header,
    dense_ffn,
    experts,
    model,
    shared_expert,
)


def deepseek_v3(*, mla: bool = True) -> Header:
    """Return DeepSeek-V3: latent attention, three leading dense blocks, one shared expert."""
    header = model(
        "deepseek2",
        layers=61,
        embd=7168,
        vocab=129280,
        context=163840,
        feed_forward_length=18432,
        leading_dense_block_count=3,
        attention__head_count=128,
        attention__head_count_kv=1 if mla else 128,
        attention__q_lora_rank=1536,
        attention__kv_lora_rank=512,
        attention__key_length=576 if mla else 192,
        attention__value_length=512 if mla else 128,
        rope__dimension_count=64,
        rope__freq_base=10000.0,
        expert_count=256,
        expert_used_count=8,
        expert_shared_count=1,
        expert_feed_forward_length=2048,
        expert_weights_scale=2.5,
        expert_weights_norm=True,
        expert_gating_func=2,
    )
    if mla:
        header.keys["attention.key_length_mla"] = 192
        header.keys["attention.value_length_mla"] = 128
    header.add("output.weight", 7168, 129280, type_=Q6_K)
    for i in range(61):
        block = f"blk.{i}"
        header.add(f"{block}.attn_norm.weight", 7168)
        header.add(f"{block}.attn_q_a.weight", 7168, 1536)
        header.add(f"{block}.attn_q_a_norm.weight", 1536)
        header.add(f"{block}.attn_q_b.weight", 1536, 128 * 192)
        header.add(f"{block}.attn_kv_a_mqa.weight", 7168, 576)
        header.add(f"{block}.attn_kv_a_norm.weight", 512)
        if mla:
            header.add(f"{block}.attn_k_b.weight", 128, 512, 128, type_=Q8_0)
            header.add(f"{block}.attn_v_b.weight", 512, 128, 128, type_=Q8_0)
        else:
            header.add(f"{block}.attn_kv_b.weight", 512, 128 * 256)
        header.add(f"{block}.attn_output.weight", 128 * 128, 7168)
        if i < 3:
            dense_ffn(header, block, 7168, 18432)
        else:
            experts(header, block, 7168, 2048, 256)
            header.add(f"{block}.exp_probs_b.bias", 256)
            shared_expert(header, block, 7168, 2048)
    return header


def deepseek_v3_unsplit() -> Header:
    """Return DeepSeek-V3 as in older files without latent attention: a cache of all heads."""
    return deepseek_v3(mla=False)


def kimi_linear() -> Header:
    """Return Kimi-Linear-48B-A3B: delta attention, latent attention in every fourth block."""
    latent = {3, 7, 11, 15, 19, 23, 26}
    header = model(
        "kimi-linear",
        layers=27,
        embd=2304,
        vocab=163840,
        context=1048576,
        feed_forward_length=9216,
        leading_dense_block_count=1,
        attention__head_count=32,
        attention__head_count_kv=[1 if i in latent else 0 for i in range(27)],
        attention__kv_lora_rank=512,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
        attention__value_length_mla=128,
        rope__dimension_count=64,
        ssm__conv_kernel=4,
        kda__head_dim=128,
        expert_count=256,
        expert_used_count=8,
        expert_shared_count=1,
        expert_feed_forward_length=1024,
        expert_weights_scale=2.446,
        expert_gating_func=2,
    )
    header.add("output.weight", 2304, 163840, type_=Q6_K)
    for i in range(27):
        block = f"blk.{i}"
        header.add(f"{block}.attn_norm.weight", 2304)
        if i in latent:
            header.add(f"{block}.attn_q.weight", 2304, 32 * 192)
            header.add(f"{block}.attn_kv_a_mqa.weight", 2304, 576)
            header.add(f"{block}.attn_kv_a_norm.weight", 512)
            header.add(f"{block}.attn_k_b.weight", 128, 512, 32, type_=Q8_0)
            header.add(f"{block}.attn_v_b.weight", 512, 128, 32)
        else:
            for part in "qkv":
                header.add(f"{block}.ssm_conv1d_{part}.weight", 4, 1, 4096, type_=F32)
                header.add(f"{block}.attn_{part}.weight", 2304, 4096)
            for part in "fg":
                header.add(f"{block}.ssm_{part}_a.weight", 2304, 128)
                header.add(f"{block}.ssm_{part}_b.weight", 128, 4096, type_=Q8_0)
            header.add(f"{block}.ssm_beta.weight", 2304, 32)
            header.add(f"{block}.ssm_a", 1, 32, type_=F32)
            header.add(f"{block}.ssm_dt.bias", 4096)
            header.add(f"{block}.ssm_norm.weight", 128)
        header.add(f"{block}.attn_output.weight", 4096, 2304)
        if i < 1:
            dense_ffn(header, block, 2304, 9216)
        else:
            experts(header, block, 2304, 1024, 256)
            header.add(f"{block}.exp_probs_b.bias", 256)
            shared_expert(header, block, 2304, 1024)
    return header


def glm5() -> Header:
    """Return GLM-5: latent attention with an indexer in every block, a nextn block at the end."""
    header = model(
        "glm-dsa",
        layers=79,
        embd=6144,
        vocab=154880,
        context=202752,
        feed_forward_length=12288,
        leading_dense_block_count=3,
        attention__head_count=64,
        attention__head_count_kv=1,
        attention__q_lora_rank=2048,
        attention__kv_lora_rank=512,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=256,
        attention__value_length_mla=256,
        attention__indexer__head_count=32,
        attention__indexer__key_length=128,
        attention__indexer__top_k=2048,
        rope__dimension_count=64,
        expert_count=256,
        expert_used_count=8,
        expert_shared_count=1,
        expert_feed_forward_length=2048,
        expert_weights_scale=2.5,
        expert_weights_norm=True,
        expert_gating_func=2,
        nextn_predict_layers=1,
    )
    header.add("output.weight", 6144, 154880, type_=Q6_K)
    for i in range(79):
        block = f"blk.{i}"
        header.add(f"{block}.attn_norm.weight", 6144)
        header.add(f"{block}.attn_q_a.weight", 6144, 2048)
        header.add(f"{block}.attn_q_a_norm.weight", 2048)
        header.add(f"{block}.attn_q_b.weight", 2048, 64 * 256)
        header.add(f"{block}.attn_kv_a_mqa.weight", 6144, 576)
        header.add(f"{block}.attn_kv_a_norm.weight", 512)
        header.add(f"{block}.attn_k_b.weight", 192, 512, 64, type_=Q8_0)
        header.add(f"{block}.attn_v_b.weight", 512, 256, 64)
        header.add(f"{block}.attn_output.weight", 64 * 256, 6144)
        header.add(f"{block}.indexer.k_norm.weight", 128)
        header.add(f"{block}.indexer.k_norm.bias", 128)
        header.add(f"{block}.indexer.proj.weight", 6144, 32)
        header.add(f"{block}.indexer.attn_k.weight", 6144, 128)
        header.add(f"{block}.indexer.attn_q_b.weight", 2048, 32 * 128)
        if i < 3:
            dense_ffn(header, block, 6144, 12288)
        else:
            experts(header, block, 6144, 2048, 256)
            header.add(f"{block}.exp_probs_b.bias", 256)
            shared_expert(header, block, 6144, 2048)
    header.add("blk.78.nextn.eh_proj.weight", 12288, 6144)
    header.add("blk.78.nextn.enorm.weight", 6144)
    header.add("blk.78.nextn.hnorm.weight", 6144)
    header.add("blk.78.nextn.shared_head_norm.weight", 6144)
    return header


def deepseek_v4() -> Header:
    """Return DeepSeek-V4-Flash: windows and compressed caches, hyper-connections."""
    ratios = [0, 0] + [(4, 128)[i % 2] for i in range(41)]
    header = model(
        "deepseek4",
        layers=43,
        embd=4096,
        vocab=129280,
        context=1048576,
        feed_forward_length=2048,
        attention__head_count=64,
        attention__head_count_kv=1,
        attention__key_length=512,
        attention__value_length=512,
        attention__q_lora_rank=1024,
        attention__sliding_window=128,
        attention__indexer__head_count=64,
        attention__indexer__key_length=128,
        attention__indexer__top_k=512,
        attention__output_group_count=8,
        attention__output_lora_rank=1024,
        attention__compress_rope_freq_base=160000.0,
        attention__compress_ratios=ratios,
        hyper_connection__count=4,
        hyper_connection__sinkhorn_iterations=20,
        hyper_connection__epsilon=1e-6,
        hash_layer_count=3,
        rope__dimension_count=64,
        expert_count=256,
        expert_used_count=6,
        expert_shared_count=1,
        expert_feed_forward_length=2048,
        expert_weights_scale=1.5,
        expert_weights_norm=True,
        expert_gating_func=4,
        swiglu_clamp_exp=[10.0] * 43,
    )
    header.add("output.weight", 4096, 129280, type_=Q6_K)
    header.add("output_hc_fn.weight", 4 * 4096, 4, type_=F32)
    header.add("output_hc_base.weight", 4)
    header.add("output_hc_scale.weight", 1)
    for i, ratio in enumerate(ratios):
        block = f"blk.{i}"
        header.add(f"{block}.attn_norm.weight", 4096)
        header.add(f"{block}.attn_sinks.weight", 64)
        header.add(f"{block}.attn_q_a.weight", 4096, 1024)
        header.add(f"{block}.attn_q_a_norm.weight", 1024)
        header.add(f"{block}.attn_q_b.weight", 1024, 64 * 512)
        header.add(f"{block}.attn_kv.weight", 4096, 512)
        header.add(f"{block}.attn_kv_a_norm.weight", 512)
        header.add(f"{block}.attn_output_a.weight", 64 * 512 // 8, 8 * 1024)
        header.add(f"{block}.attn_output_b.weight", 8 * 1024, 4096)
        for part in ("attn", "ffn"):
            header.add(f"{block}.hc_{part}_fn.weight", 4 * 4096, 24, type_=F32)
            header.add(f"{block}.hc_{part}_base.weight", 24)
            header.add(f"{block}.hc_{part}_scale.weight", 3)
        if ratio:
            width = 512 * (2 if ratio == 4 else 1)
            header.add(f"{block}.attn_compressor_kv.weight", 4096, width)
            header.add(f"{block}.attn_compressor_gate.weight", 4096, width)
            header.add(f"{block}.attn_compressor_ape.weight", width, ratio, type_=F32)
            header.add(f"{block}.attn_compressor_norm.weight", 512)
        if ratio == 4:
            header.add(f"{block}.indexer.proj.weight", 4096, 64)
            header.add(f"{block}.indexer.attn_q_b.weight", 1024, 64 * 128)
            header.add(f"{block}.indexer_compressor_kv.weight", 4096, 256)
            header.add(f"{block}.indexer_compressor_gate.weight", 4096, 256)
            header.add(f"{block}.indexer_compressor_ape.weight", 256, 4, type_=F32)
            header.add(f"{block}.indexer_compressor_norm.weight", 128)
        if i < 3:
            header.add(f"{block}.ffn_gate_tid2eid.weight", 6, 129280, type_=I32)
        else:
            header.add(f"{block}.exp_probs_b.bias", 256)
        experts(header, block, 4096, 2048, 256, type_=MXFP4)
        shared_expert(header, block, 4096, 2048)
    return header
