"""A preset for the tests of the formats, and help texts to write it for."""

from __future__ import annotations

import subprocess
from datetime import date
from functools import cache
from pathlib import Path

from study.study_sample import ENVIRONMENT, WORKLOAD

from autofit.presets.formats.registry import FORMATS, write_preset
from autofit.presets.preset import Preset
from autofit.runtime.dialect.dialect import ContainerRules, IniRules, PresetRules
from autofit.runtime.discovery.help_text import HelpText, parse_help

ARGUMENTS = (
    *("--model", "/models/tiny.gguf", "--n-gpu-layers", "49", "--n-cpu-moe", "20"),
    *("--ctx-size", "8192", "--parallel", "1", "--flash-attn", "on", "--fit", "off"),
)
RESERVED = ("host", "port", "alias", "api-key", "log-colors")
RULES = PresetRules(
    formats=tuple(FORMATS),
    ini=IniRules(cannot_hold=(";", "#"), reserved=RESERVED),
    container=ContainerRules({"CUDA": "example.org/llama:cuda"}, "/app/llama-server"),
)


@cache
def real_help(folder: Path) -> HelpText:
    """Return the help of the real llama-server in a folder."""
    done = subprocess.run(
        [folder / "llama-server", "--help"], check=True, capture_output=True, text=True, timeout=30
    )
    return parse_help(done.stdout)


SMALL_HELP = parse_help(
    """\
-t,    --threads N                      number of CPU threads (env: LLAMA_ARG_THREADS)
-c,    --ctx-size N                     size of the prompt context (env: LLAMA_ARG_CTX_SIZE)
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether to offload (env: LLAMA_ARG_KV_OFFLOAD)
--warmup, --no-warmup                   whether to perform warmup
--no-host                               bypass host buffer (env: LLAMA_ARG_NO_HOST)
-fa,   --flash-attn [on|off|auto]       set Flash Attention (env: LLAMA_ARG_FLASH_ATTN)
-ngl,  --gpu-layers, --n-gpu-layers N   layers in VRAM (env: LLAMA_ARG_N_GPU_LAYERS)
-np,   --parallel N                     number of slots (env: LLAMA_ARG_N_PARALLEL)
-fit,  --fit [on|off]                   whether to adjust (env: LLAMA_ARG_FIT)
-ot,   --override-tensor <tensor name pattern>=<buffer type>,...
                                        override buffer type (env: LLAMA_ARG_OVERRIDE_TENSOR)
-cmoe, --cpu-moe                        keep all experts in the CPU (env: LLAMA_ARG_CPU_MOE)
-ncmoe, --n-cpu-moe N                   experts of the first N (env: LLAMA_ARG_N_CPU_MOE)
-ncffn, --n-cpu-ffn N                   dense FFN of the first N (env: LLAMA_ARG_N_CPU_FFN)
-m,    --model FNAME                    model path to load (env: LLAMA_ARG_MODEL)
--lora FNAME                            path to LoRA adapter (use comma-separated values to
                                        load multiple adapters)
-hff,  --hf-file FILE                   Hugging Face model file
--chat-template-kwargs STRING           parameters of the template
--host HOST                             address to listen on (env: LLAMA_ARG_HOST)
--port PORT                             port to listen (env: LLAMA_ARG_PORT)
-a,    --alias STRING                   model name aliases
--draft, --draft-max N                  the argument has been removed. use --spec-draft-n-max
"""
)


def make_preset(**changes) -> Preset:
    """Return the preset of a proven winner with some fields changed."""
    fields = {
        "model_name": "tiny",
        "model_path": Path("/models/tiny.gguf"),
        "command": ("/opt/llama.cpp/llama-server",),
        "arguments": ARGUMENTS,
        "address": ("--host", "127.0.0.1", "--port", "{port}"),
        "params": {"n_gpu_layers": 49, "n_cpu_moe": 20},
        "help": SMALL_HELP,
        "folder": Path("/home/user"),
        "rules": RULES,
        "workload": WORKLOAD,
        "objective": "request_s",
        "environment": ENVIRONMENT,
        "gain": {"median": 1.25, "low": 1.2, "high": 1.31},
        "proven": True,
        "estimates": {"tg_per_s": {"median": 41.0, "low": 40.0, "high": 42.0, "n": 5}},
        "free_mib": {"CUDA0": 900.0, "host": None},
        "taken_mib": {"CUDA0": 9100.0, "host": 4000.0},
        "made_on": date(2026, 11, 29),
        "autofit_version": "0.1.0",
    }
    return Preset(**{**fields, **changes})


def write_file(format_name: str, folder: Path, preset: Preset | None = None) -> Path:
    """Write a preset into a folder, in a format."""
    path = folder / f"preset{FORMATS[format_name].suffix}"
    path.write_text(write_preset(format_name, preset or make_preset()), encoding="utf-8")
    return path


# Changes of the sample for what formats write differently.
VARIETY = [
    {},
    {"env": {"GGML_X": "3"}, "wrapper": ("numactl", "--membind=0")},
    {"params": {"load_mode": "mlock"}},
    {"arguments": ("--rpc", "10.0.0.2:50052", *ARGUMENTS)},
    {"model_path": Path("/models/a-00001-of-00003.gguf"), "model_name": "3"},
    {"arguments": ("--port", "9000", "--host", "0.0.0.0")},  # noqa: S104 - only text
    {"image": "mine:1", "model_name": "Größe: 1 # x"},
]
SPECIAL = make_preset(
    arguments=(*ARGUMENTS, "--no-warmup", "--override-tensor", r"blk\.1\.ffn=CPU"),
    env={"CUDA_SCALE_LAUNCH_QUEUES": "4x", "NOTE": "two words"},
    wrapper=("numactl", "-N", "0"),
)
