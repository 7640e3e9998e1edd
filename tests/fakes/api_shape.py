"""The JSON that llama-server answers with, field by field (b11434)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SAMPLERS = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc",
             "temperature"]  # fmt: skip
_SAMPLING: dict[str, Any] = {
    "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "top_k": 40, "top_p": 0.949999988079071,
    "min_p": 0.05000000074505806, "top_n_sigma": -1.0, "xtc_probability": 0.0,
    "xtc_threshold": 0.10000000149011612, "typical_p": 1.0, "repeat_last_n": 64,
    "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64,
}  # fmt: skip
_MIROSTAT: dict[str, Any] = {
    "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.10000000149011612,
    "adaptive_target": -1.0, "adaptive_decay": 0.8999999761581421,
}  # fmt: skip
_CAPS = ("supports_object_arguments", "supports_parallel_tool_calls",
         "supports_preserve_reasoning", "supports_reasoning_effort", "supports_string_content",
         "supports_system_role", "supports_tool_calls", "supports_tools",
         "supports_typed_content")  # fmt: skip
CHAT_TEMPLATE = (
    "{%- for message in messages -%}\n  {{- '<|im_start|>' + message.role + '\\n' + "
    "message.content + '<|im_end|>\\n' -}}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\n"
    "  {{- '<|im_start|>assistant\\n' -}}\n{%- endif -%}"
)


def error(status: int, kind: str, message: str, **more: Any) -> dict[str, Any]:
    """An error body."""
    return {"error": {"code": status, "message": message, "type": kind, **more}}


def timings(
    cached: int, prompt_n: int, prompt_ms: float, predicted_n: int, predicted_ms: float
) -> dict[str, Any]:
    """The timings object; the first generated token is free."""
    steps = max(0, predicted_n - 1)
    per_token = predicted_ms / steps if steps else 0.0
    return {
        "cache_n": cached,
        "prompt_n": prompt_n,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": prompt_ms / prompt_n if prompt_n else 0.0,
        "prompt_per_second": 1e3 * prompt_n / prompt_ms if prompt_ms else 0.0,
        "predicted_n": predicted_n,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": per_token,
        "predicted_per_second": 1e3 / per_token if per_token else 0.0,
    }


def _tail(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "samplers": _SAMPLERS,
        "speculative.types": "none",
        "timings_per_token": bool(asked.get("timings_per_token", False)),
        "post_sampling_probs": bool(asked.get("post_sampling_probs", False)),
        "backend_sampling": False,
        "lora": [],
    }


def generation_settings(
    asked: Mapping[str, Any], n_predict: int, biased: Sequence[int]
) -> dict[str, Any]:
    """Return the settings that a request was generated with."""
    return {
        "seed": int(asked.get("seed", -1)) % 2**32,
        "temperature": float(asked.get("temperature", 0.800000011920929)),
        **_SAMPLING,
        "dry_sequence_breakers": ["\n", ":", '"', "*"],
        **_MIROSTAT,
        "stop": list(asked.get("stop", [])),
        "max_tokens": n_predict,
        "n_predict": n_predict,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": bool(asked.get("ignore_eos", False)),
        "stream": bool(asked.get("stream", False)),
        "logit_bias": [{"bias": None, "token": token} for token in biased],
        "n_probs": int(asked.get("n_probs", 0)),
        "min_keep": 0,
        "grammar": "",
        "grammar_lazy": False,
        "grammar_triggers": [],
        "preserved_tokens": [],
        "chat_format": "Content-only",
        "reasoning_format": "deepseek",
        "reasoning_in_content": False,
        "generation_prompt": "",
        **_tail(asked),
    }


def props(
    slot_context: int, slots: int, path: str, build: str, *, has_metrics: bool
) -> dict[str, Any]:
    """The answer to /props."""
    params = {
        "seed": 4294967295,
        "temperature": 0.800000011920929,
        **_SAMPLING,
        **_MIROSTAT,
        "max_tokens": -1,
        "n_predict": -1,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": False,
        "stream": False,
        "n_probs": 0,
        "min_keep": 0,
        "chat_format": "Content-only",
        "reasoning_format": "none",
        "reasoning_in_content": False,
        "generation_prompt": "",
        **_tail({}),
    }
    return {
        "default_generation_settings": {"params": params, "n_ctx": slot_context},
        "total_slots": slots,
        "model_alias": path,
        "model_ftype": "Q4_K - Medium",
        "model_path": path,
        "modalities": {"vision": False, "video": False, "audio": False},
        "media_marker": "<__media_r6ClxYpOLVQzZeMl7JKInCBhgrhpOoyH__>",
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": has_metrics,
        "ui": True,
        "ui_settings": {},
        "chat_template": CHAT_TEMPLATE,
        "chat_template_caps": {
            name: name in ("supports_string_content", "supports_system_role") for name in _CAPS
        },
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "build_info": build,
        "is_sleeping": False,
        "cors_proxy_enabled": False,
    }


def models(path: str, model: Any, slot_context: int) -> dict[str, Any]:
    """The answer to /v1/models."""
    name = path
    return {
        "models": [
            {
                "name": name, "model": name, "modified_at": "", "size": "", "digest": "",
                "type": "model", "description": "", "tags": [""],
                "capabilities": ["completion"], "parameters": "",
                "details": {"parent_model": "", "format": "gguf", "family": "",
                            "families": [""], "parameter_size": "", "quantization_level": ""},
            }
        ],
        "object": "list",
        "data": [
            {
                "id": name, "aliases": [name], "tags": [], "object": "model",
                "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
                "created": 1795980168, "owned_by": "llamacpp",
                "meta": {
                    "vocab_type": 2, "n_vocab": model.n_vocab, "n_ctx": slot_context,
                    "n_ctx_train": model.context_train, "n_embd": model.n_embd,
                    "n_params": model.elements, "size": model.total_bytes,
                    "ftype": "Q4_K - Medium",
                },
            }
        ],
    }  # fmt: skip


def probability(
    top: Sequence[tuple[int, float]], pieces: Sequence[bytes], *, sampled: bool
) -> dict[str, Any]:
    """One generated token with its likeliest rivals; logprobs, or probabilities after sampling."""
    rows = []
    for (token, value), raw in zip(top, pieces, strict=True):
        row: dict[str, Any] = {"id": token, "token": raw.decode("utf-8", "replace")}
        row["bytes"] = list(raw)
        if sampled:
            row["prob"] = 1.0
        else:
            row["logprob"] = value
        rows.append(row)
    key = "top_probs" if sampled else "top_logprobs"
    return {**rows[0], key: rows[:1] if sampled else rows}
