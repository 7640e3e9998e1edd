"""The memory demand of single settings: which values need more memory of devices or of the host.

Demand orders the values of one setting. It has no unit, and the demands of two settings cannot
be compared. `memory_model` predicts bytes; `dominance` compares candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autofit.model.sizes.kv_cache import kv_element_bytes
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.parameter_groups import (
    KV_TYPE_PARAMS,
    MEMORY_FREE_PARAMS,
    PREFETCH_PARAMS,
)

Memory = Literal["device", "host"]
MEMORIES: tuple[Memory, ...] = ("device", "host")
# The demands of the values of each setting; None for a setting that does not change a memory.
Demands = Sequence[NDArray[np.float64] | None]

# With more of these, more lies on the devices; with more host expert layers, less does.
_GROWING = frozenset({"ubatch", "context", *PREFETCH_PARAMS, "moe_cache_mib"})
_SHRINKING = frozenset({"host_expert_layers"})
KV_AXES = frozenset({"cache_type", *KV_TYPE_PARAMS})
_NO_MEMORY = frozenset(MEMORY_FREE_PARAMS)
# The way in which a file is loaded changes the host's memory only.
_HOST_ONLY = frozenset({"load_mode"})
# A batch limits the ubatch where it is smaller, which spaces rule out.
_FREE: dict[Memory, frozenset[str]] = {
    "device": _NO_MEMORY | {"batch"} | _HOST_ONLY,
    "host": _NO_MEMORY | {"batch"} | KV_AXES | _GROWING - {"context"},
}


def kv_bytes(cache_type: ParamValue) -> float:
    """Return the bytes of one element of a KV type, or nan for an unknown type."""
    return kv_element_bytes(cache_type, unknown=math.nan)


def number(value: ParamValue) -> float:
    """Return a value as a number, or nan for a word."""
    try:
        return float(value)
    except ValueError:
        return math.nan


def demand(name: str, value: ParamValue, memory: Memory = "device") -> float:
    """Return how much of a memory a value demands, or nan if the direction is unknown."""
    if name in _SHRINKING:
        return -number(value) if memory == "device" else number(value)
    if memory == "host":
        return math.nan
    if name in _GROWING:
        return number(value)
    return kv_bytes(value) if name in KV_AXES else math.nan


def demands_of(
    name: str, values: Sequence[ParamValue], memory: Memory
) -> NDArray[np.float64] | None:
    """Return the memory demand of each value of a setting, or None if it affects none."""
    if is_free(name, memory):
        return None
    return np.array([demand(name, value, memory) for value in values])


def is_free(name: str, memory: Memory) -> bool:
    """Return whether no value of a setting changes a memory."""
    return name in _FREE[memory]


def without_free_settings(candidate: Candidate, *, devices_only: bool = False) -> Candidate:
    """Return the candidate with only those settings that change memory.

    Candidates that are equal afterwards share one prediction. A batch counts only if it is
    smaller than the ubatch, which it then limits. `devices_only` also leaves out the settings
    that change nothing but host memory.
    """
    left_out = _NO_MEMORY | _HOST_ONLY if devices_only else _NO_MEMORY
    params = {name: value for name, value in candidate.params.items() if name not in left_out}
    ubatch = candidate.get_int("ubatch", 512)
    if "batch" in params and candidate.get_int("batch", ubatch) >= ubatch:
        params["batch"] = ubatch
    return Candidate(params)
