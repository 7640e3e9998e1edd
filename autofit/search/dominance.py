"""What a memory failure rules out: the same candidate with more on the devices.

Less offload to the host, a larger ubatch, a wider KV type or more context, all else equal,
take at least as much of every device; more offload takes at least as much of the host.
Which params pull which way is the field's knowledge; anything not named here must be equal.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from autofit.model.sizes.kv_cache import kv_element_bytes
from autofit.search.point_grid import Floats, Grid, Rows, number
from autofit.search.problem import Memory
from autofit.search.space import HOST_LAYERS_AXIS
from autofit.trial.candidate import ParamValue
from autofit.trial.parameter_groups import KV_TYPE_PARAMS, MEMORY_FREE_PARAMS, PREFETCH_PARAMS

_GROWING = frozenset({"ubatch", "context", *PREFETCH_PARAMS, "moe_cache_mib"})
KV_AXES = frozenset({"cache_type", *KV_TYPE_PARAMS})
# Params that take nothing of a kind of memory: how a file is loaded changes what the host
# holds and not what a device does; caches and buffers lie on devices.
_FREE_ANYWHERE = frozenset({*MEMORY_FREE_PARAMS, "batch"})
_FREE: dict[Memory, frozenset[str]] = {
    "device": _FREE_ANYWHERE | {"load_mode"},
    "host": _FREE_ANYWHERE | KV_AXES | _GROWING - {"context"},
}


def kv_bytes(value: ParamValue) -> float:
    """Return the bytes of one number in a KV type; nan for a type that ggml lacks."""
    return kv_element_bytes(value, unknown=math.nan)


def demand(name: str, value: ParamValue) -> float:
    """How much device memory a value asks for, on a scale of its own; nan if unknown."""
    if name == HOST_LAYERS_AXIS:
        return -number(value)
    if name in _GROWING:
        return number(value)
    return kv_bytes(value) if name in KV_AXES else math.nan


def is_free(name: str, memory: Memory) -> bool:
    """Whether a param takes nothing of a memory, whatever its value."""
    return name in _FREE[memory]


def needing_at_least(grid: Grid, rows: Rows, failed: Rows, memory: Memory) -> NDArray[np.bool_]:
    """Which rows need at least the memory of a row that failed for want of it.

    Args:
        grid: of the problem.
        rows: of shape (points, axes).
        failed: the row that failed, of shape (axes,).
        memory: which memory it wanted.
    """
    return _compared(grid, rows, failed, memory, sign=1.0)


def needing_at_most(grid: Grid, rows: Rows, ran: Rows, memory: Memory) -> NDArray[np.bool_]:
    """Which rows need at most the memory of a row that ran."""
    return _compared(grid, rows, ran, memory, sign=-1.0)


def _compared(
    grid: Grid, rows: Rows, other: Rows, memory: Memory, *, sign: float
) -> NDArray[np.bool_]:
    found = np.ones(len(rows), dtype=np.bool_)
    for place, axis in enumerate(grid.axes):
        if axis.name in _FREE[memory]:
            continue
        needs = _needs(axis.name, axis.values, memory)
        here = rows[:, place]
        with np.errstate(invalid="ignore"):
            found &= (here == other[place]) | (sign * (needs[here] - needs[other[place]]) >= 0)
    return found


def _needs(name: str, values: tuple[ParamValue, ...], memory: Memory) -> Floats:
    if memory == "device":
        return np.array([demand(name, value) for value in values])
    # Host memory holds the layers that the devices do not.
    sign = -1.0 if name == HOST_LAYERS_AXIS else math.nan
    return np.array([sign * demand(name, value) for value in values])
