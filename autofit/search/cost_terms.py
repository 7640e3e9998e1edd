"""The two parts of a request's time as sums of physical terms.

A prompt token costs computing, its share of every pass over the device's weights, of every
upload of the host's experts, and what the processor computes itself. A generated token costs
what is read from the devices, from the host's memory, and of the cache. Coefficients are
positive and held as logarithms; what a setting changes multiplies a term or the whole part.
Bandwidths of the priors are the middle of what published tables show, with a factor of two
either way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from autofit.memory.demand import kv_bytes, number
from autofit.model.sizes.kv_cache import DEFAULT_KV_TYPE
from autofit.search.point_grid import Floats, Grid, Rows
from autofit.search.priors import LEVEL, effects_of
from autofit.search.space import HOST_LAYERS_AXIS

PartName = Literal["prompt", "generation", "request"]

_DEVICE_BYTES_PER_S = 400e9
_HOST_BYTES_PER_S = 45e9
_LINK_BYTES_PER_S = 12e9
_PASS_S = 4e-3
_READBACK_S = 60e-6
_TOKEN_S = 2e-3
# Two operations a weight, 4.5 bits a weight, 25e12 operations a second.
_COMPUTE_S_PER_BYTE = 2 / 0.56 / 25e12
# Large batches of host layers are computed on a device, so little is left for the processor.
_HOST_COMPUTE_S_PER_BYTE = 2 / 0.56 / 100e12
_TERM_SD = 0.7
_HOST_COMPUTE_SD = 1.5
# Kinds of machines unlike the usual one: how common, how much farther all may lie from what is
# expected, and by what factor terms are longer. One expects nothing, one computes slowly beside
# its link, and on one small experts are read so slowly that the processor is faster.
_KINDS: tuple[tuple[float, float, Mapping[str, float]], ...] = (
    (0.12, 3.0, {}),
    (0.15, 1.0, {"compute": 5.0, "upload": 0.5}),
    (0.12, 1.0, {"device_experts": 8.0}),
)
# How far a level may be off, with the model's bytes known and without.
_LEVEL_SD, _UNKNOWN_LEVEL_SD = 0.5, 2.0

_DEFAULT_UBATCH, _DEFAULT_BATCH = 512, 2048


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of machine: how common it is, and the normal prior of all unknowns on it.

    `mean` and `sd` have the shape (terms + effects,), terms first.
    """

    weight: float
    mean: Floats
    sd: Floats


@dataclass(frozen=True, slots=True)
class Design:
    """A part at some points, linear but for the sum of exponentials.

    `log t = log sum_k exp(base_k + offsets[:, k] + (columns * effects) @ touches[:, k])`.

    Attributes:
        offsets: logarithm of each term at coefficient 1; -inf where absent: (points, terms).
        columns: how much of each effect a point has: (points, effects).
        touches: which terms an effect multiplies: (effects, terms).
        kinds: of machines that there may be, each with its prior of all unknowns.
    """

    offsets: Floats
    columns: Floats
    touches: Floats
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class _Term:
    part: str
    name: str
    seconds: float
    amount: Floats
    sd: float = _TERM_SD


def design(grid: Grid, rows: Rows, part: PartName) -> Design:
    """The terms and effects of a part at some rows; `request` is both parts together."""
    terms = _terms(grid, rows, part)
    with np.errstate(divide="ignore"):
        offsets = np.stack([np.log(term.amount) for term in terms], axis=1)
    mean = [math.log(term.seconds) for term in terms]
    sd = [term.sd for term in terms]
    columns, touches = [np.ones(len(rows))], [np.ones(len(terms))]
    mean.append(0.0)
    sd.append(_LEVEL_SD if grid.problem.traits.is_known else _UNKNOWN_LEVEL_SD)
    for name in dict.fromkeys(term.part for term in terms):
        for effect in effects_of(grid, name):
            columns.append(effect.column(rows))
            touches.append(
                np.array([float(t.part == name and effect.term in (LEVEL, t.name)) for t in terms])
            )
            mean.append(effect.mean)
            sd.append(effect.sd)
    kinds = _kinds([term.name for term in terms], np.array(mean), np.array(sd))
    return Design(offsets, np.stack(columns, axis=1), np.stack(touches), kinds)


def _kinds(terms: Sequence[str], mean: Floats, sd: Floats) -> tuple[Kind, ...]:
    """The kinds of machines that differ in some of these terms; all others are usual."""
    found = []
    for weight, spread, factors in _KINDS:
        shift = np.zeros(len(mean))
        shift[: len(terms)] = [math.log(factors.get(name, 1.0)) for name in terms]
        if spread > 1 or shift.any():
            found.append(Kind(weight, mean + shift, sd * spread))
    usual = 1.0 - sum(kind.weight for kind in found)
    return (Kind(usual, mean, sd), *found)


def _terms(grid: Grid, rows: Rows, part: PartName) -> list[_Term]:
    if part == "prompt":
        return _prompt_terms(grid, rows, 1.0)
    if part == "generation":
        return _generation_terms(grid, rows, 1.0)
    goal = grid.problem.goal
    return [
        *_prompt_terms(grid, rows, goal.prompt_tokens),
        *_generation_terms(grid, rows, goal.predicted_tokens),
    ]


def _prompt_terms(grid: Grid, rows: Rows, tokens: float) -> list[_Term]:
    traits = grid.problem.traits
    layers = _host_layers(grid, rows)
    passes = passes_per_token(grid, rows)
    active = traits.fixed_read_bytes + traits.layers * traits.read_bytes
    resident = traits.fixed_read_bytes + traits.layers * traits.movable_bytes / 2
    return [
        _Term("prompt", "compute", active * _COMPUTE_S_PER_BYTE, np.full(len(rows), tokens)),
        _Term("prompt", "pass", _PASS_S + resident / _DEVICE_BYTES_PER_S, tokens * passes),
        _Term(
            "prompt",
            "upload",
            traits.movable_bytes / _LINK_BYTES_PER_S,
            tokens * passes * layers,
        ),
        _Term(
            "prompt",
            "host",
            traits.read_bytes * _HOST_COMPUTE_S_PER_BYTE,
            tokens * layers,
            _HOST_COMPUTE_SD,
        ),
    ]


def _generation_terms(grid: Grid, rows: Rows, tokens: float) -> list[_Term]:
    traits, goal = grid.problem.traits, grid.problem.goal
    layers = _host_layers(grid, rows)
    cache = (
        grid.column(rows, "cache_type_k", kv_bytes, DEFAULT_KV_TYPE)
        + grid.column(rows, "cache_type_v", kv_bytes, DEFAULT_KV_TYPE)
    ) / 4.0
    cache_s = traits.kv_bytes * goal.depth / _DEVICE_BYTES_PER_S
    fixed_s = _TOKEN_S + traits.fixed_read_bytes / _DEVICE_BYTES_PER_S
    return [
        _Term("generation", "device", fixed_s, np.full(len(rows), tokens)),
        _Term(
            "generation",
            "device_experts",
            traits.read_bytes / _DEVICE_BYTES_PER_S,
            tokens * (traits.layers - layers),
        ),
        _Term(
            "generation",
            "host",
            traits.read_bytes / _HOST_BYTES_PER_S + _READBACK_S,
            tokens * layers,
        ),
        _Term("generation", "cache", cache_s, tokens * np.nan_to_num(cache, nan=1.0)),
    ]


def _host_layers(grid: Grid, rows: Rows) -> Floats:
    """Host layers of each row; where it is not told, none without an axis, else half."""
    most = float(grid.problem.traits.layers)
    pinned = grid.problem.space.pinned.get("n_cpu_moe", 0)
    found = grid.column(rows, HOST_LAYERS_AXIS, number, pinned)
    layers: Floats = np.clip(np.nan_to_num(found, nan=most / 2), 0.0, most)
    return layers


def passes_per_token(grid: Grid, rows: Rows) -> Floats:
    """Computed ubatches for a prompt token, in the mean over the workload's requests.

    A prompt is cut into batches, each batch into ubatches; the last of each may be short.
    """
    ubatch = grid.column(rows, "ubatch", number, _DEFAULT_UBATCH)
    batch = grid.column(rows, "batch", number, _DEFAULT_BATCH)
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
    found: Floats = passes / tokens
    return found
