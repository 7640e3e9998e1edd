"""The two parts of a request's time, prompt and generation, as sums of physical terms.

    seconds per prompt token = compute + pass + upload + host
    seconds per generated token = device + device_experts + host + cache

A prompt token takes time for computing on the devices (`compute`), for its share of every pass
over the devices' weights (`pass`) and of every upload of host experts (`upload`), and for
computing on the processor (`host`). Without uploads the processor computes all host experts
(`processor`). A generated token takes time for reading weights on the
devices (`device`, `device_experts`), weights in host memory (`host`), and the KV cache (`cache`).

A term is coefficient times amount. The amount follows from the point. The coefficients are
positive and unknown, so the model works with their logarithms. A setting multiplies one term or
a whole part, which adds an effect to the logarithm (`priors`). The prior means of the
coefficients use the middle of published bandwidths, with a factor of two either way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from autofit.memory.demand import kv_bytes, number
from autofit.model.sizes.kv_cache import DEFAULT_KV_TYPE
from autofit.search.point_grid import Floats, PointGrid, Rows
from autofit.search.priors import ALL_TERMS, effects_of
from autofit.search.problem import ModelTraffic
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS

# `request` is the sum of both parts, for launches that measured the whole cost only.
PartName = Literal["prompt", "generation", "request"]

_DEVICE_BYTES_PER_S = 400e9
_HOST_BYTES_PER_S = 45e9
_LINK_BYTES_PER_S = 12e9
_PASS_S = 4e-3
_READBACK_S = 60e-6
_TOKEN_S = 2e-3
# Two operations per weight, 4.5 bits (0.56 bytes) per weight, 25e12 operations per second.
_BYTES_PER_WEIGHT = 0.56
_COMPUTE_S_PER_BYTE = 2 / _BYTES_PER_WEIGHT / 25e12
# A device computes large batches of host layers, so little of them is left for the processor.
_HOST_COMPUTE_S_PER_BYTE = 2 / _BYTES_PER_WEIGHT / 100e12
# What a core computes of quantized weights in a batch, and its deviation.
_CORE_OPERATIONS_PER_S = 40e9
_USUAL_CORES = 8
_TERM_SD = 0.7
_HOST_COMPUTE_SD = 1.5
# Unusual types of machines: prior probability, factor on all standard deviations, and factors on
# the means of terms. On the first nothing is as expected. The second computes slowly compared
# with its link. The third reads small experts so slowly that the processor is faster.
_UNUSUAL_MACHINES: tuple[tuple[float, float, Mapping[str, float]], ...] = (
    (0.12, 3.0, {}),
    (0.15, 1.0, {"compute": 5.0, "upload": 0.5}),
    (0.12, 1.0, {"device_experts": 8.0}),
)
# Standard deviation of the level of a part, with the bytes of the model known and unknown.
_LEVEL_SD, _UNKNOWN_LEVEL_SD = 0.5, 2.0

_DEFAULT_UBATCH, _DEFAULT_BATCH = 512, 2048
_OFF = frozenset({"off", "false", "0"})


def cpu_prompt_s(traffic: ModelTraffic, cores: int) -> float:
    """Return the expected seconds of the processor for a prompt token and a host layer."""
    operations = 2 / _BYTES_PER_WEIGHT * traffic.read_bytes
    return operations / ((cores or _USUAL_CORES) * _CORE_OPERATIONS_PER_S)


def upload_s(traffic: ModelTraffic, link_gb_s: float | None) -> float:
    """Return the expected seconds of one upload of a host layer's experts."""
    return traffic.movable_bytes / (link_gb_s * 1e9 if link_gb_s else _LINK_BYTES_PER_S)


@dataclass(frozen=True, slots=True)
class MachineType:
    """A component of the mixture prior: a type of machine and the normal prior on it.

    Attributes:
        weight: prior probability of the type.
        mean: of the unknowns, terms first, then effects: (terms + effects,).
        sd: standard deviations of the same.
    """

    weight: float
    mean: Floats
    sd: Floats


@dataclass(frozen=True, slots=True)
class Design:
    """The data of some points from which the logarithm of a part is computed.

    With the unknowns `base` (one per term) and `effects`, a point's time t is

        log t = log sum_k exp(base_k + offsets_k + sum_e columns_e effects_e touches_ek)

    Attributes:
        offsets: logarithm of each term's amount, -inf for an absent term: (points, terms).
        columns: 1 if an effect applies to a point, else 0: (points, effects).
        touches: 1 if an effect multiplies a term, else 0: (effects, terms).
        machine_types: the mixture prior of the unknowns.
    """

    offsets: Floats
    columns: Floats
    touches: Floats
    machine_types: tuple[MachineType, ...]


@dataclass(frozen=True, slots=True)
class _Term:
    """A term: prior mean of its coefficient in seconds, amounts of the points, log deviation."""

    part: str
    name: str
    seconds: float
    amount: Floats
    sd: float = _TERM_SD


def build_design(grid: PointGrid, rows: Rows, part: PartName) -> Design:
    """Return the terms and effects of a part at some rows."""
    terms = _terms(grid, rows, part)
    with np.errstate(divide="ignore"):
        offsets = np.stack([np.log(term.amount) for term in terms], axis=1)
    mean = [math.log(term.seconds) for term in terms]
    sd = [term.sd for term in terms]
    # The first effect is the level: it applies to all points and terms.
    columns, touches = [np.ones(len(rows))], [np.ones(len(terms))]
    mean.append(0.0)
    sd.append(_LEVEL_SD if grid.problem.traffic.is_known else _UNKNOWN_LEVEL_SD)
    for name in dict.fromkeys(term.part for term in terms):
        for effect in effects_of(grid, name):
            columns.append(effect.indicator(rows))
            affected = [t.part == name and effect.term in (ALL_TERMS, t.name) for t in terms]
            touches.append(np.array(affected, dtype=float))
            mean.append(effect.mean)
            sd.append(effect.sd)
    types = _machine_types([term.name for term in terms], np.array(mean), np.array(sd))
    return Design(offsets, np.stack(columns, axis=1), np.stack(touches), types)


def _machine_types(terms: Sequence[str], mean: Floats, sd: Floats) -> tuple[MachineType, ...]:
    """Return the usual type of machine and the unusual ones that differ in these terms."""
    unusual = []
    for weight, spread, factors in _UNUSUAL_MACHINES:
        shift = np.zeros(len(mean))
        shift[: len(terms)] = [math.log(factors.get(name, 1.0)) for name in terms]
        if spread > 1 or shift.any():
            unusual.append(MachineType(weight, mean + shift, sd * spread))
    usual_weight = 1.0 - sum(one.weight for one in unusual)
    return (MachineType(usual_weight, mean, sd), *unusual)


def _terms(grid: PointGrid, rows: Rows, part: PartName) -> list[_Term]:
    if part == "prompt":
        return _prompt_terms(grid, rows, 1.0)
    if part == "generation":
        return _generation_terms(grid, rows, 1.0)
    goal = grid.problem.goal
    return [
        *_prompt_terms(grid, rows, goal.prompt_tokens),
        *_generation_terms(grid, rows, goal.predicted_tokens),
    ]


def _prompt_terms(grid: PointGrid, rows: Rows, tokens: float) -> list[_Term]:
    traffic = grid.problem.traffic
    layers = _host_layers(grid, rows)
    passes = _passes_per_token(grid, rows)
    is_uploaded = _uploads(grid, rows)
    uploads = tokens * passes * layers * is_uploaded * _link_slowness(grid, rows)
    active = traffic.fixed_read_bytes + traffic.layers * traffic.read_bytes
    resident = traffic.fixed_read_bytes + traffic.layers * traffic.movable_bytes / 2
    terms = [
        _Term("prompt", "compute", active * _COMPUTE_S_PER_BYTE, np.full(len(rows), tokens)),
        _Term("prompt", "pass", _PASS_S + resident / _DEVICE_BYTES_PER_S, tokens * passes),
        _Term("prompt", "upload", upload_s(traffic, None), uploads),
        _Term(
            "prompt",
            "host",
            traffic.read_bytes * _HOST_COMPUTE_S_PER_BYTE,
            tokens * layers,
            _HOST_COMPUTE_SD,
        ),
    ]
    if grid.column_of("op_offload") is not None:
        seconds = cpu_prompt_s(traffic, grid.problem.hardware.cores)
        computed = tokens * layers * (1.0 - is_uploaded)
        terms.append(_Term("prompt", "processor", seconds, computed))
    return terms


def _uploads(grid: PointGrid, rows: Rows) -> Floats:
    """Return 1 for rows whose host experts are uploaded for large batches, else 0."""
    column = grid.column_of("op_offload")
    if column is None:
        is_off = str(grid.problem.space.pinned.get("op_offload", "on")).lower() in _OFF
        return np.full(len(rows), 0.0 if is_off else 1.0)
    is_on = [str(value).lower() not in _OFF for value in grid.axes[column].values]
    return np.array(is_on, dtype=float)[rows[:, column]]


def _generation_terms(grid: PointGrid, rows: Rows, tokens: float) -> list[_Term]:
    traffic, goal = grid.problem.traffic, grid.problem.goal
    layers = _host_layers(grid, rows)
    # Size of the KV cache relative to f16, whose K and V take 2 bytes each.
    cache = (
        grid.numbers(rows, "cache_type_k", kv_bytes, DEFAULT_KV_TYPE)
        + grid.numbers(rows, "cache_type_v", kv_bytes, DEFAULT_KV_TYPE)
    ) / 4.0
    cache_s = traffic.kv_bytes * goal.depth / _DEVICE_BYTES_PER_S
    fixed_s = _TOKEN_S + traffic.fixed_read_bytes / _DEVICE_BYTES_PER_S
    return [
        _Term("generation", "device", fixed_s, np.full(len(rows), tokens)),
        _Term(
            "generation",
            "device_experts",
            traffic.read_bytes / _DEVICE_BYTES_PER_S,
            tokens * (traffic.layers - layers),
        ),
        _Term(
            "generation",
            "host",
            traffic.read_bytes / _HOST_BYTES_PER_S + _READBACK_S,
            tokens * layers,
        ),
        _Term("generation", "cache", cache_s, tokens * np.nan_to_num(cache, nan=1.0)),
    ]


def _host_layers(grid: PointGrid, rows: Rows) -> Floats:
    """Return the host layers of each row: 0 without an axis, half for a text."""
    most = float(grid.problem.traffic.layers)
    pinned = grid.problem.space.pinned.get("n_cpu_moe", 0)
    values = grid.numbers(rows, HOST_LAYERS_AXIS, number, pinned)
    layers: Floats = np.clip(np.nan_to_num(values, nan=most / 2), 0.0, most)
    return layers


def _link_slowness(grid: PointGrid, rows: Rows) -> Floats:
    """Return the usual speed of a link over that of each row's layout, 1 where it is unknown."""
    known = grid.problem.hardware.upload_gb_s
    column = grid.column_of(LAYOUT_AXIS)
    if column is None or not known:
        return np.ones(len(rows))
    usual = _LINK_BYTES_PER_S / 1e9
    slowness = [usual / known.get(str(layout), usual) for layout in grid.axes[column].values]
    return np.array(slowness)[rows[:, column]]


def _passes_per_token(grid: PointGrid, rows: Rows) -> Floats:
    """Return the ubatches that are computed per prompt token, as a mean over the requests.

    A prompt is cut into batches, and each batch into ubatches. The last of each may be short.
    """
    ubatch = grid.numbers(rows, "ubatch", number, _DEFAULT_UBATCH)
    batch = grid.numbers(rows, "batch", number, _DEFAULT_BATCH)
    ubatch = np.maximum(1.0, np.nan_to_num(ubatch, nan=_DEFAULT_UBATCH))
    batch = np.maximum(1.0, np.nan_to_num(batch, nan=_DEFAULT_BATCH))
    ubatch = np.minimum(ubatch, batch)
    passes = np.zeros(len(rows))
    tokens = 0.0
    for request in grid.problem.goal.requests:
        whole, rest = np.divmod(float(request.prompt_tokens), batch)
        count = whole * np.ceil(batch / ubatch) + np.ceil(rest / ubatch)
        passes += request.weight * count
        tokens += request.weight * request.prompt_tokens
    per_token: Floats = passes / tokens
    return per_token
