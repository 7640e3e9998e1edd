"""Prior distributions of the effects of settings on the cost terms.

They hold the field's knowledge: which terms each setting changes, and by how much, according to
published tables and launches. A setting without an entry here, such as one that a user added to
a space, may change prompts and generation by some percent.

An effect is a change of the logarithm of a term: 0.1 makes the term about 10% longer. Its prior
is normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autofit.memory.demand import number
from autofit.search.point_grid import Floats, PointGrid, Rows
from autofit.search.problem import Problem
from autofit.search.space import (
    HOST_LAYERS_AXIS,
    LAYOUT_AXIS,
    TENSOR_LAYOUT,
    Axis,
    is_single_device,
)
from autofit.trial.candidate import ParamValue
from autofit.trial.parameter_groups import EXPERT_MEMORY_PARAMS

ALL_TERMS = ""  # the term of an effect on all terms of a part


@dataclass(frozen=True, slots=True)
class Prior:
    """The prior of the effects of a setting's values on one term.

    `mean_of` returns the mean for a value; `sd` is the standard deviation for each value.
    """

    part: str
    term: str
    sd: float
    mean_of: Callable[[ParamValue, Problem], float] = lambda _, __: 0.0


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one value of a setting on one term, with its normal prior.

    `indicator` returns for each row 1 if the effect applies, else 0.
    """

    setting: str
    name: str
    term: str
    mean: float
    sd: float
    indicator: Callable[[Rows], Floats]


# Mapped weights are uploaded through the page cache: prompts lost a quarter to two thirds of
# their speed.
_UPLOAD_BY_LOAD_MODE = {"none": 0.0, "dio": 0.0, "mlock": 0.2}
_MAPPED_UPLOAD = 0.4
_PREFETCHED_UPLOAD = -0.15
_NO_FLASH_ATTENTION = 0.1
_NUMA = {"distribute": -0.1, "isolate": 0.1}
# Some cores often use the whole bandwidth of system RAM, so half of them are expected to lose
# little. Threads on efficiency cores are expected to hold all others back.
_HALF_THE_READERS = 0.1
_MORE_THREADS = 0.1


def _mapped_upload(value: ParamValue, _: Problem) -> float:
    return _UPLOAD_BY_LOAD_MODE.get(str(value), _MAPPED_UPLOAD)


def _mapped_read(value: ParamValue, _: Problem) -> float:
    """Return the effect of mapped weights on generation, which was 10% slower with them."""
    return 0.0 if str(value) in _UPLOAD_BY_LOAD_MODE else 0.1


def _prefetched_upload(value: ParamValue, _: Problem) -> float:
    return _PREFETCHED_UPLOAD if number(value) > 0 else 0.0


def _no_flash_attention(value: ParamValue, problem: Problem) -> float:
    """Return the effect of attention without flash attention, which old cards compute faster."""
    if str(value) != "off":
        return 0.0
    return 0.0 if problem.hardware.has_old_cards else _NO_FLASH_ATTENTION


def _numa(value: ParamValue, _: Problem) -> float:
    """Return the effect of placing threads and memory by node, or of using one node only."""
    return _NUMA.get(str(value), 0.0)


def _fewer_threads(value: ParamValue, problem: Problem) -> float:
    """Return the effect of other threads than the fastest cores on computing: log sqrt(cores / n).

    More threads than those wait for efficiency cores.
    """
    cores, threads = problem.hardware.cores, number(value)
    if not cores or not threads > 0:
        return 0.0
    return 0.5 * math.log(cores / threads) if threads <= cores else _MORE_THREADS


def _fewer_readers(value: ParamValue, problem: Problem) -> float:
    """Return the effect of other threads on reading system RAM, which some cores can saturate."""
    cores, threads = problem.hardware.cores, number(value)
    if not cores or not threads > 0:
        return 0.0
    return _HALF_THE_READERS * math.log2(cores / threads) if threads <= cores else _MORE_THREADS


_prompt = partial(Prior, "prompt")
_generation = partial(Prior, "generation")
# With long prompts attention is much of the time, and some devices convert a narrow cache first.
_KV = (_prompt(ALL_TERMS, 0.06), _generation(ALL_TERMS, 0.03), _generation("cache", 0.3))
_THREADS = (
    _prompt("host", 0.3, _fewer_threads),
    _prompt("processor", 0.15, _fewer_threads),
    _prompt(ALL_TERMS, 0.02),
    _generation("host", 0.12, _fewer_readers),
    _generation(ALL_TERMS, 0.02),
)
_THREADS_WITHOUT_DEVICES = (
    _prompt(ALL_TERMS, 0.3, _fewer_threads),
    _generation(ALL_TERMS, 0.3, _fewer_threads),
)
_PREFETCH = (
    _prompt("upload", 0.3, _prefetched_upload),
    _prompt(ALL_TERMS, 0.05),
    _generation(ALL_TERMS, 0.01),
)
_PRIORS: Mapping[str, tuple[Prior, ...]] = {
    "ubatch": (_prompt(ALL_TERMS, 0.08), _generation(ALL_TERMS, 0.01)),
    "batch": (_prompt(ALL_TERMS, 0.015), _generation(ALL_TERMS, 0.005)),
    "cache_type": _KV,
    "cache_type_k": _KV,
    "cache_type_v": _KV,
    "load_mode": (
        _prompt("upload", 0.3, _mapped_upload),
        _prompt(ALL_TERMS, 0.03),
        _generation("host", 0.2, _mapped_read),
        _generation(ALL_TERMS, 0.02),
    ),
    "flash_attn": (
        _prompt(ALL_TERMS, 0.1, _no_flash_attention),
        _generation(ALL_TERMS, 0.1, _no_flash_attention),
    ),
    "threads": _THREADS,
    "numa": (_prompt("processor", 0.2, _numa), _generation("host", 0.25, _numa)),
    "op_offload": (_generation(ALL_TERMS, 0.01),),
    "threads_batch": (_prompt("host", 0.3), _prompt(ALL_TERMS, 0.02)),
    "cuda_scale_launch_queues": (_prompt(ALL_TERMS, 0.08), _generation(ALL_TERMS, 0.02)),
    "prefetch_slots": _PREFETCH,
    "prefetch_weights": _PREFETCH,
    "moe_cache_mib": (_prompt(ALL_TERMS, 0.03), _generation("host", 0.3)),
    LAYOUT_AXIS: (
        _prompt(ALL_TERMS, 0.05),
        _prompt("upload", 0.15),
        _generation(ALL_TERMS, 0.05),
        _generation("host", 0.05),
    ),
}
_BETWEEN_SHARE = 0.25
# Prefetching and caching have most of their effect in common for all sizes.
_COMMON_SHARE, _OWN_SIZE_SHARE = 0.85, 0.5
_UNKNOWN_SETTING = (_prompt(ALL_TERMS, 0.12), _generation(ALL_TERMS, 0.12))
# Mean and deviation of the effect of layers that are divided over all devices. On two equal
# cards generation was 1.4 to 1.5 times as fast, and over slow links both parts were slower.
_DIVIDED_LAYERS = {"prompt": (0.0, 0.3), "generation": (-0.3, 0.3)}
# The same of pipeline parallelism, which the runtime uses on several devices without host layers.
_PIPELINE = {"prompt": (-0.25, 0.4), "generation": (0.0, 0.1)}


def effects_of(grid: PointGrid, part: str) -> Iterator[Effect]:
    """Yield the effects on a part: one for each value of each axis with several values."""
    for column, axis in enumerate(grid.axes):
        if axis.name == HOST_LAYERS_AXIS or len(axis.values) < 2:  # noqa: PLR2004
            continue
        if axis.name == LAYOUT_AXIS and grid.work is not None:
            continue  # the terms of each device say what a layout changes
        for prior in _priors_of(grid, axis):
            if prior.part != part:
                continue
            for index, value in enumerate(axis.values):
                mean = prior.mean_of(value, grid.problem)
                sd = prior.sd * _own_share(axis.name, value)
                name = f"{axis.name} {value} on {prior.term or 'all'}"
                yield Effect(axis.name, name, prior.term, mean, sd, _has_value(column, [index]))
            if axis.name in EXPERT_MEMORY_PARAMS:
                used = [index for index, value in enumerate(axis.values) if value]
                name, sd = f"{axis.name} on {prior.term or 'all'}", prior.sd * _COMMON_SHARE
                yield Effect(axis.name, name, prior.term, 0.0, sd, _has_value(column, used))
    divided = _layout_index(grid, TENSOR_LAYOUT)
    if divided is not None:
        mean, sd = _DIVIDED_LAYERS[part]
        name, (column, index) = "divided layers", divided
        yield Effect(name, name, ALL_TERMS, mean, sd, _has_value(column, [index]))
    is_pipelined = _pipeline_indicator(grid)
    if is_pipelined is not None:
        mean, sd = _PIPELINE[part]
        yield Effect("pipeline", "pipeline", ALL_TERMS, mean, sd, is_pipelined)


def _own_share(name: str, value: ParamValue) -> float:
    """Return the share of an effect's deviation that a value has for itself.

    A ubatch between two powers of two is expected to be as fast as these say, so that more
    values do not look like more chances.
    """
    size = number(value)
    if name in EXPERT_MEMORY_PARAMS and value:
        return _OWN_SIZE_SHARE
    is_between = name == "ubatch" and size > 0 and not math.log2(size).is_integer()
    return _BETWEEN_SHARE if is_between else 1.0


def _priors_of(grid: PointGrid, axis: Axis) -> tuple[Prior, ...]:
    names = (axis.name, *axis.params)
    if "threads" in names and grid.column_of(HOST_LAYERS_AXIS) is None:
        return _THREADS_WITHOUT_DEVICES
    return next((_PRIORS[name] for name in names if name in _PRIORS), _UNKNOWN_SETTING)


def _layout_index(grid: PointGrid, layout: str) -> tuple[int, int] | None:
    """Return column and index of a layout, or None if it is not searched."""
    column = grid.column_of(LAYOUT_AXIS)
    if column is None or layout not in grid.axes[column].values:
        return None
    return column, grid.axes[column].values.index(layout)


def _has_value(column: int, indices: Sequence[int]) -> Callable[[Rows], Floats]:
    return lambda rows: np.isin(rows[:, column], indices).astype(float)


def _pipeline_indicator(grid: PointGrid) -> Callable[[Rows], Floats] | None:
    """Return the indicator of rows on several devices without host layers, or None if none is."""
    layers, layout = grid.column_of(HOST_LAYERS_AXIS), grid.column_of(LAYOUT_AXIS)
    if layers is None or layout is None:
        return None
    several = np.array(
        [
            not is_single_device(value) and value != TENSOR_LAYOUT
            for value in grid.axes[layout].values
        ]
    )
    none = np.array([number(v) == 0 for v in grid.axes[layers].values])
    if not several.any() or not none.any():
        return None
    return lambda rows: (several[rows[:, layout]] & none[rows[:, layers]]).astype(float)
