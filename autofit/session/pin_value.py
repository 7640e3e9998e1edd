"""Values that a parameter can have at all, whatever the runtime."""

from __future__ import annotations

import math

from autofit.trial.candidate import ParamValue
from autofit.trial.parameter_groups import EXPERT_CACHE_PARAMS, HOST_LAYER_PARAMS

LARGEST = 2**31 - 1  # an int of the runtime
_AT_LEAST = {
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


def value_fault(name: str, value: ParamValue, *, type_: str, block_count: int) -> str:
    """What is wrong with a parameter's value; empty where nothing is.

    Args:
        name: the parameter.
        value: what it should be.
        type_: the dialect's type of the parameter.
        block_count: the model's blocks, the most that can be kept by the host.
    """
    if name == "tensor_split":
        return _split_fault(str(value))
    if type_ == "integer" or name in _AT_LEAST:
        if isinstance(value, bool) or not isinstance(value, int):
            return "not a whole number"
        least = _AT_LEAST.get(name, -LARGEST)
        largest = block_count if name in HOST_LAYER_PARAMS else LARGEST
        if value < least:
            return f"must be at least {least}"
        if value > largest:
            blocks = ", the model's blocks" if largest < LARGEST else ""
            return f"must be at most {largest}{blocks}"
    return ""


def _split_fault(text: str) -> str:
    try:
        # The runtime takes either mark (`common/arg.cpp`).
        shares = [float(part) for part in text.replace("/", ",").split(",")]
    except ValueError:
        return "not numbers separated by commas"
    if not all(math.isfinite(share) and share >= 0 for share in shares):
        return "a share is not a finite number of at least 0"
    return "" if any(shares) else "all shares are 0"
