"""The names of runtime parameters, grouped by what they decide."""

from __future__ import annotations

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
# These do not change the memory that a candidate takes.
MEMORY_FREE_PARAMS = ("threads", "threads_batch", "op_offload_min_batch")
