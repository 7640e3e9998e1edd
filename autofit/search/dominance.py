"""What a memory failure rules out: the same candidate with more on the devices.

Less offload to the host, a larger ubatch, a wider KV type or more context, all else equal,
take at least as much of every device. Which params pull which way is the field's
knowledge; anything not named here must be equal.
"""

from __future__ import annotations

from autofit.search.space import HOST_LAYERS_AXIS, Point
from autofit.trial.candidate import ParamValue

# Bytes per element of the KV cache types, from the block table of llama.cpp.
KV_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 1.0625,
    "q5_1": 0.75,
    "q5_0": 0.6875,
    "q4_1": 0.625,
    "q4_0": 0.5625,
    "iq4_nl": 0.5625,
}
_GROWING = frozenset({"ubatch", "context", "prefetch_slots", "moe_cache_mib"})
_KV_AXES = frozenset({"cache_type", "cache_type_k", "cache_type_v"})
# Params that take nothing of a device.
_FREE = frozenset({"threads", "threads_batch"})


def demand(name: str, value: ParamValue) -> float | None:
    """How much memory a value asks for, on a scale of its own; None if that is not known."""
    if name == HOST_LAYERS_AXIS:
        return -float(value)
    if name in _GROWING:
        return float(value)
    if name in _KV_AXES:
        return KV_BYTES.get(str(value))
    return None


def needs_at_least(point: Point, failed: Point, *, zero_is_apart: bool) -> bool:
    """Whether a point needs at least the memory of one that failed for want of it."""
    if set(point) != set(failed):
        return False
    if zero_is_apart and (point.get(HOST_LAYERS_AXIS) == 0) != (failed.get(HOST_LAYERS_AXIS) == 0):
        return False
    for name, value in point.items():
        if name in _FREE or value == failed[name]:
            continue
        asked, refused = demand(name, value), demand(name, failed[name])
        if asked is None or refused is None or asked < refused:
            return False
    return True
