"""Runtime parameters, grouped by what they decide, and the values that they can have."""

from __future__ import annotations

import math

# These decide on which device each layer is. To fix one of them fixes the layout.
PLACEMENT_PARAMS = (
    "devices",
    "n_gpu_layers",
    "tensor_split",
    "override_tensor",
    "n_cpu_moe",
    "n_cpu_ffn",
)
# Each is a number of leading layers whose experts, or dense feed-forward, stay in system RAM.
HOST_LAYER_PARAMS = ("n_cpu_moe", "n_cpu_ffn")
# The types of cached keys and of cached values.
KV_TYPE_PARAMS = ("cache_type_k", "cache_type_v")
# These let the device compute experts that are in system RAM. 0, "off" or absent is none.
PREFETCH_PARAMS = ("prefetch_slots", "prefetch_weights")
EXPERT_CACHE_PARAMS = ("moe_cache_mib", "moe_cache_slots")
EXPERT_MEMORY_PARAMS = (*PREFETCH_PARAMS, *EXPERT_CACHE_PARAMS)
# These have no effect if no layer has weights in system RAM.
HOST_ONLY_PARAMS = ("threads", "threads_batch", "numa", "op_offload", "op_offload_min_batch")
# These do not change the memory that a candidate takes.
MEMORY_FREE_PARAMS = (
    "threads",
    "threads_batch",
    "numa",
    "op_offload_min_batch",
    "cuda_scale_launch_queues",
)

# The largest integer of the runtime.
LARGEST_VALUE = 2**31 - 1
_LEAST_VALUES = {
    "ubatch": 1,
    "batch": 1,
    "threads": 1,
    "threads_batch": 1,
    "context": 1,
    "parallel": 1,
    **dict.fromkeys(HOST_LAYER_PARAMS, 0),
    **dict.fromkeys(("prefetch_slots", *EXPERT_CACHE_PARAMS), 0),
    "op_offload_min_batch": 0,
}


def find_value_fault(name: str, value: object, *, type_: str, block_count: int) -> str:
    """Return the fault of a parameter's value, or an empty text if it is valid.

    Args:
        name: the parameter.
        value: its value.
        type_: the dialect's type of the parameter.
        block_count: the model's blocks, which limits the layers in system RAM.
    """
    if name == "tensor_split":
        return _find_split_fault(str(value))
    if type_ == "integer" or name in _LEAST_VALUES:
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be a whole number"
        least = _LEAST_VALUES.get(name, -LARGEST_VALUE)
        largest = block_count if name in HOST_LAYER_PARAMS else LARGEST_VALUE
        if value < least:
            return f"must be at least {least}"
        if value > largest:
            blocks = ", the model's blocks" if largest < LARGEST_VALUE else ""
            return f"must be at most {largest}{blocks}"
    return ""


def _find_split_fault(text: str) -> str:
    try:
        # The runtime takes both separators (`common/arg.cpp`).
        shares = [float(part) for part in text.replace("/", ",").split(",")]
    except ValueError:
        return "must be numbers separated by commas"
    if not all(math.isfinite(share) and share >= 0 for share in shares):
        return "every share must be a finite number of at least 0"
    return "" if any(shares) else "at least one share must be above 0"
