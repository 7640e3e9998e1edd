"""llama-server's flags as attributes of xllamacpp's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

from autofit.errors import UsageError
from autofit.runtime.discovery.help_text import Flag


def _enum(enum: str, prefix: str, **names: str) -> Callable[[str], object]:
    """Return a function that finds a member of an enumeration by the suffix of its name."""

    def convert(value: str) -> object:
        import xllamacpp  # noqa: PLC0415 - slow, and help does not need it

        return getattr(xllamacpp, enum)[prefix + names.get(value, value.upper())]

    return convert


def _host_overrides(pattern: str) -> Callable[[str], str]:
    return lambda value: ",".join(f"{pattern % layer}=CPU" for layer in range(int(value)))


def _split(value: str) -> list[float]:
    given = [float(part) for part in value.replace("/", ",").split(",")]
    return given + [0.0] * (128 - len(given))


_KV_TYPE = _enum("ggml_type", "GGML_TYPE_")
_LOAD = {"mmap+mlock": "MMAP_MLOCK", "dio": "DIRECT_IO"}
# The attribute of the package's parameters that each flag sets, and the conversion of its value.
SETTINGS: dict[str, tuple[str, Callable[[str], object]]] = {
    "--model": ("model.path", str),
    "--ctx-size": ("n_ctx", int),
    "--batch-size": ("n_batch", int),
    "--ubatch-size": ("n_ubatch", int),
    "--parallel": ("n_parallel", int),
    "--kv-unified": ("kv_unified", lambda _: True),
    "--no-kv-unified": ("kv_unified", lambda _: False),
    "--flash-attn": (
        "flash_attn_type",
        _enum("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_", on="ENABLED", off="DISABLED"),
    ),
    "--cache-type-k": ("cache_type_k", _KV_TYPE),
    "--cache-type-v": ("cache_type_v", _KV_TYPE),
    "--no-kv-offload": ("no_kv_offload", lambda _: True),
    "--n-gpu-layers": ("n_gpu_layers", lambda v: int({"auto": "-1", "all": "-2"}.get(v, v))),
    "--split-mode": ("split_mode", _enum("llama_split_mode", "LLAMA_SPLIT_MODE_")),
    "--tensor-split": ("tensor_split", _split),
    "--main-gpu": ("main_gpu", int),
    "--override-tensor": ("tensor_buft_overrides", str),
    "--n-cpu-moe": (
        "tensor_buft_overrides",
        _host_overrides(r"blk\.%d\.ffn_(up|down|gate|gate_up)_(ch|)exps"),
    ),
    "--n-cpu-ffn": ("tensor_buft_overrides", _host_overrides(r"blk\.%d\.ffn_(up|down|gate)\.")),
    "--load-mode": ("load_mode", _enum("llama_load_mode", "LLAMA_LOAD_MODE_", **_LOAD)),
    "--no-repack": ("no_extra_bufts", lambda _: True),
    "--no-op-offload": ("no_op_offload", lambda _: True),
    "--swa-full": ("swa_full", lambda _: True),
    "--threads": ("cpuparams.n_threads", int),
    "--threads-batch": ("cpuparams_batch.n_threads", int),
    "--fit": ("fit_params", {"on": True, "off": False}.__getitem__),
    "--cache-ram": ("cache_ram_mib", int),
    "--ctx-checkpoints": ("n_ctx_checkpoints", int),
    "--no-cache-prompt": ("cache_prompt", lambda _: False),
    "--no-warmup": ("warmup", lambda _: False),
    "--mmproj": ("mmproj.path", str),
    "--chat-template": ("chat_template", str),
    "--verbosity": ("verbosity", int),
    "--host": ("hostnames", lambda value: [value]),
    "--port": ("port", int),
}


def apply_flags(params: Any, given: Iterable[tuple[Flag, str, str]]) -> None:  # noqa: ANN401
    """Set the package's parameters from flags, each with its word and its value.

    Raises:
        UsageError: a flag does not accept its value.
    """
    overrides: list[str] = []
    for flag, word, value in given:
        path, convert = next(SETTINGS[name] for name in flag.spellings if name in SETTINGS)
        *owners, attribute = path.split(".")
        try:
            setting = convert(value)
            if attribute == "tensor_buft_overrides":
                overrides += [str(setting)] if setting else []
                setting = ",".join(overrides)  # the first match counts
            setattr(reduce(getattr, owners, params), attribute, setting)
        except (ValueError, LookupError, TypeError, OverflowError, AssertionError) as error:
            reason = f"unknown value: '{value}'" if isinstance(error, LookupError) else error
            raise UsageError(f'error while handling argument "{word}": {reason}') from error
