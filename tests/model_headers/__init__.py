"""Header-only GGUF files of real models, written by gguf-py from public hyperparameters.

Sizes are those of the published configurations. The tensors are those that llama.cpp
requires, so that its own tools accept the files. The data is a hole.
"""

from __future__ import annotations

from collections.abc import Callable

from model_headers import hybrid, latent, transformer
from model_headers.header import Header, tensor_bytes

__all__ = ["MODELS", "Header", "tensor_bytes"]

MODELS: dict[str, Callable[[], Header]] = {
    make.__name__: make
    for make in (
        transformer.llama_8b,
        transformer.mixtral,
        transformer.qwen3moe,
        transformer.gpt_oss_20b,
        transformer.glm45_air,
        transformer.llama4_scout,
        transformer.gemma2_9b,
        transformer.gemma3_27b,
        transformer.gemma4_26b,
        transformer.deci_uneven,
        hybrid.qwen3next,
        hybrid.qwen35moe,
        hybrid.nemotron3_nano,
        hybrid.lfm2_8b,
        hybrid.falcon_h1,
        hybrid.mamba2,
        latent.deepseek_v3,
        latent.deepseek_v3_unsplit,
        latent.kimi_linear,
        latent.glm5,
        latent.deepseek_v4,
    )
}
