"""How much a value of a setting may change a term, before anything is measured.

The field's knowledge as priors: what published tables and launches show each setting to
touch, and by how much at most. A setting that is not named here, such as one that a user
added to a space, may change either part by some per cent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autofit.memory.demand import number
from autofit.search.point_grid import Floats, Grid, Rows
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, is_single_device
from autofit.trial.candidate import ParamValue

LEVEL = ""  # all terms of a part


@dataclass(frozen=True, slots=True)
class Prior:
    """What each value of a setting does to the logarithm of a term, as a normal prior."""

    part: str
    term: str
    sd: float
    mean_of: Callable[[ParamValue, Axis], float] = lambda _, __: 0.0


@dataclass(frozen=True, slots=True)
class Effect:
    """One value's effect on one term; `column` tells how much of it rows have."""

    part: str
    term: str
    mean: float
    sd: float
    column: Callable[[Rows], Floats]


# Mapped weights are uploaded through the page cache: prefill lost a quarter to two thirds.
_UPLOAD_BY_LOAD_MODE = {"none": 0.0, "dio": 0.0, "mlock": 0.2}
_MAPPED = 0.4
_PREFETCH = -0.15


def _load_mode(value: ParamValue, _: Axis) -> float:
    return _UPLOAD_BY_LOAD_MODE.get(str(value), _MAPPED)


def _page_cache(value: ParamValue, _: Axis) -> float:
    """Generation read mapped weights a tenth slower."""
    return 0.0 if str(value) in _UPLOAD_BY_LOAD_MODE else 0.1


def _prefetch(value: ParamValue, _: Axis) -> float:
    return _PREFETCH if number(value) > 0 else 0.0


def _flash(value: ParamValue, _: Axis) -> float:
    return 0.1 if str(value) == "off" else 0.0


def _threads(value: ParamValue, axis: Axis) -> float:
    """Fewer threads than the most that are tried compute, and read, somewhat less."""
    most = max((number(v) for v in axis.values if number(v) > 0), default=1.0)
    return 0.5 * math.log(most / number(value)) if number(value) > 0 else 0.0


_KV = (
    Prior("prompt", LEVEL, 0.03),
    Prior("generation", LEVEL, 0.03),
    Prior("generation", "cache", 0.3),
)
_THREADS = (
    Prior("prompt", "host", 0.3, _threads),
    Prior("prompt", LEVEL, 0.02),
    Prior("generation", "host", 0.15, _threads),
    Prior("generation", LEVEL, 0.02),
)
_WHOLE_ON_HOST = (
    Prior("prompt", LEVEL, 0.3, _threads),
    Prior("generation", LEVEL, 0.3, _threads),
)
_PREFETCHING = (
    Prior("prompt", "upload", 0.3, _prefetch),
    Prior("prompt", LEVEL, 0.05),
    Prior("generation", LEVEL, 0.01),
)
_PRIORS: Mapping[str, tuple[Prior, ...]] = {
    "ubatch": (Prior("prompt", LEVEL, 0.08), Prior("generation", LEVEL, 0.01)),
    "batch": (Prior("prompt", LEVEL, 0.015), Prior("generation", LEVEL, 0.005)),
    "cache_type": _KV,
    "cache_type_k": _KV,
    "cache_type_v": _KV,
    "load_mode": (
        Prior("prompt", "upload", 0.3, _load_mode),
        Prior("prompt", LEVEL, 0.03),
        Prior("generation", "host", 0.2, _page_cache),
        Prior("generation", LEVEL, 0.02),
    ),
    "flash_attn": (Prior("prompt", LEVEL, 0.1, _flash), Prior("generation", LEVEL, 0.1, _flash)),
    "threads": _THREADS,
    "threads_batch": (Prior("prompt", "host", 0.3), Prior("prompt", LEVEL, 0.02)),
    "prefetch_slots": _PREFETCHING,
    "prefetch_weights": _PREFETCHING,
    "moe_cache_mib": (Prior("prompt", LEVEL, 0.03), Prior("generation", "host", 0.3)),
    LAYOUT_AXIS: (
        Prior("prompt", LEVEL, 0.05),
        Prior("prompt", "upload", 0.15),
        Prior("generation", LEVEL, 0.05),
        Prior("generation", "host", 0.05),
    ),
}
_UNKNOWN = (Prior("prompt", LEVEL, 0.12), Prior("generation", LEVEL, 0.12))
# One device alone against several together, and one alone against another alone. With as many
# host layers it saves the copies from device to device.
_ALONE_MEAN = -0.03
_ALONE = (
    Prior("prompt", LEVEL, 0.15),
    Prior("prompt", "upload", 0.25),
    Prior("generation", LEVEL, 0.12),
    Prior("generation", "host", 0.1),
)
# Several devices and no override: the runtime runs them as a pipeline.
_PIPELINE = {"prompt": (-0.1, 0.4), "generation": (0.0, 0.1)}


def effects_of(grid: Grid, part: str) -> Iterator[Effect]:
    """All effects on a part, one for each value of each axis that has several."""
    for place, axis in enumerate(grid.axes):
        if axis.name == HOST_LAYERS_AXIS or len(axis.values) < 2:  # noqa: PLR2004
            continue
        for prior in _priors(grid, axis):
            if prior.part != part:
                continue
            for value_place, value in enumerate(axis.values):
                yield Effect(
                    part, prior.term, prior.mean_of(value, axis), prior.sd, _is(place, value_place)
                )
    yield from _alone(grid, part)
    pipelined = _pipelined(grid)
    if pipelined is not None:
        mean, sd = _PIPELINE[part]
        yield Effect(part, LEVEL, mean, sd, pipelined)


def _priors(grid: Grid, axis: Axis) -> tuple[Prior, ...]:
    names = (axis.name, *axis.params)
    if "threads" in names and grid.place(HOST_LAYERS_AXIS) is None:
        return _WHOLE_ON_HOST
    return next((_PRIORS[name] for name in names if name in _PRIORS), _UNKNOWN)


def _alone(grid: Grid, part: str) -> Iterator[Effect]:
    """Effects of using one device alone: those shared by all devices, and each one's own."""
    layout = grid.place(LAYOUT_AXIS)
    if layout is None or len(grid.axes[layout].values) < 2:  # noqa: PLR2004
        return
    alone = np.array([float(is_single_device(value)) for value in grid.axes[layout].values])
    for prior in (prior for prior in _ALONE if prior.part == part):
        mean = _ALONE_MEAN if prior.term == LEVEL else 0.0
        yield Effect(part, prior.term, mean, prior.sd, lambda rows: alone[rows[:, layout]])
        for place in np.flatnonzero(alone):
            yield Effect(part, prior.term, 0.0, prior.sd, _is(layout, int(place)))


def _is(place: int, value_place: int) -> Callable[[Rows], Floats]:
    return lambda rows: (rows[:, place] == value_place).astype(float)


def _pipelined(grid: Grid) -> Callable[[Rows], Floats] | None:
    """Tells rows without host layers on several devices; None where there can be none."""
    layers, layout = grid.place(HOST_LAYERS_AXIS), grid.place(LAYOUT_AXIS)
    if layers is None or layout is None:
        return None
    several = np.array([not is_single_device(value) for value in grid.axes[layout].values])
    without = np.array([number(v) == 0 for v in grid.axes[layers].values])
    if not several.any() or not without.any():
        return None
    return lambda rows: (several[rows[:, layout]] & without[rows[:, layers]]).astype(float)
