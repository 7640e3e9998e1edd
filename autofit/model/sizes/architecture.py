"""What a header leaves unsaid: rules that llama.cpp has by architecture.

Source: `load_arch_hparams` of the files in llama.cpp's `src/models`, and `llama-hparams.cpp`
(build 11434). Rules that the metadata or the tensors tell by themselves are not repeated here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Which blocks attend through a sliding window where the file does not list them.

    The last block of every `period` sees everything, or the first where `full_first`; with a
    period of 0 none does. `window` holds where the file gives none.
    """

    period: int
    full_first: bool = False
    window: int = 0


WINDOW_RULES = {
    "afmoe": WindowRule(4),
    "cohere2": WindowRule(4),
    "cohere2moe": WindowRule(4, full_first=True),
    "deepseek4": WindowRule(0),
    "exaone-moe": WindowRule(4),
    "exaone4": WindowRule(4),
    "gemma-embedding": WindowRule(6),
    "gemma2": WindowRule(2, window=4096),
    "gemma3": WindowRule(6),
    "gemma3n": WindowRule(5),
    "gpt-oss": WindowRule(2),
    "laguna": WindowRule(4, full_first=True),
    "llama4": WindowRule(4, window=8192),
    "mellum": WindowRule(4),
    "modern-bert": WindowRule(3, full_first=True),
    "muse-glimmer": WindowRule(4),
    "olmo2": WindowRule(4),
    "plamo3": WindowRule(8),
    "smallthinker": WindowRule(4, full_first=True, window=4096),
}

# A window is in the metadata, but llama.cpp does not use it.
WINDOW_UNUSED = frozenset({"phi3"})

# Attention whose values are its keys: only K is cached.
K_ONLY = frozenset({"deepseek4"})

# One block of so many attends, the others are recurrent, where the file does not list them.
ATTENTION_INTERVALS = {
    "minimax-01": 8,
    "qwen35": 4,
    "qwen35moe": 4,
    "qwen3next": 4,
    "qwen4exp": 4,
}

# Blocks after the first so many share the cache of earlier ones.
CACHED_BLOCKS = {"gemma3n": 20}

# Recurrent states per token shift, where the file does not say.
TOKEN_SHIFTS = {"rwkv6": 2, "rwkv7": 2, "rwkv6qwen2": 1, "arwkv7": 1}

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

# Architectures whose cache follows from these rules; others are told with a notice.
KNOWN = frozenset(_KNOWN_NAMES.split())
