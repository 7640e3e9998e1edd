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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from autofit.memory.demand import kv_bytes, number
from autofit.model.sizes.kv_cache import DEFAULT_KV_TYPE
from autofit.search.point_grid import Floats, PointGrid, Rows
from autofit.search.priors import ALL_TERMS, effects_of
from autofit.search.problem import ModelTraffic
from autofit.search.space import HOST_LAYERS_AXIS
from autofit.trial.device import Device

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
# Another device: what the next one adds to each pass and to each token. On some machines this is
# a hundred times as much.
_HOP_PASS_S, _HOP_TOKEN_S, _HOP_SD = 1e-3, 100e-6, 2.0
# Log deviations of the speed of a device: of another model from the mean, of two of the same
# model, and of one term alone. Links differ more: slots have 1 to 16 lanes of any generation.
_MODEL_SD, _SAME_MODEL_SD, _OWN_SD = 0.6, 0.1, 0.15
_LINK_SD, _KNOWN_LINK_SD = 0.7, 0.2
_HOST_COMPUTE_SD = 1.5
# Unusual types of machines: prior probability, factor on all standard deviations, and factors on
# the means of terms. On the first nothing is as expected. The second computes slowly compared
# with its link. The third reads small experts so slowly that the processor is faster.
_UNUSUAL_MACHINES: tuple[tuple[float, float, Mapping[str, float]], ...] = (
    (0.12, 3.0, {}),
    (0.15, 1.0, {"compute": 5.0, "upload": 0.5}),
    (0.12, 1.0, {"device_experts": 8.0}),
)
# On some machines one setting matters far more than usual: threads on all cores can wait for each
# other and be five times slower. Each setting is an unusual type of machine of its own, so that
# after a surprise all settings that changed stay doubtful. A type that is this unlikely does not
# count until launches make it likelier.
_STRONG_EFFECT_PROBABILITY, _STRONG_EFFECT_SD = 0.008, 1.0
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
        covariance: of the same, or None if they are independent: (unknowns, unknowns).
        hyper_weights: prior probabilities of the hyperparameters of noise and residual, or None
            for the usual ones.
    """

    weight: float
    mean: Floats
    sd: Floats
    covariance: Floats | None = None
    hyper_weights: Floats | None = None

    def spread(self, jacobian: Floats) -> Floats:
        """Return the covariance of some points with the unknowns: (points, unknowns)."""
        if self.covariance is None:
            scaled: Floats = jacobian * self.sd**2
            return scaled
        known: Floats = jacobian @ self.covariance
        return known

    def variances(self, jacobian: Floats) -> Floats:
        """Return the variances of some points, of shape (points,)."""
        if self.covariance is None:
            found: Floats = ((jacobian * self.sd) ** 2).sum(axis=1)
            return found
        known: Floats = (self.spread(jacobian) * jacobian).sum(axis=1)
        return known


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
        names: of the unknowns, equal in all designs where they mean the same on one machine.
        strong_settings: more types of machines, each with strong effects of one setting. Earlier
            studies say nothing about them.
    """

    offsets: Floats
    columns: Floats
    touches: Floats
    machine_types: tuple[MachineType, ...]
    names: tuple[str, ...]
    strong_settings: tuple[MachineType, ...]


@dataclass(frozen=True, slots=True)
class _Term:
    """A term: prior mean of its coefficient in seconds, amounts of the points, log deviation.

    `device` is the index of the device that it depends on, if there are several.
    """

    part: str
    name: str
    seconds: float
    amount: Floats
    sd: float = _TERM_SD
    device: int | None = None

    @property
    def key(self) -> str:
        """The name of the term, with its device if there are several."""
        return self.name if self.device is None else f"{self.name} of device {self.device}"


def build_design(grid: PointGrid, rows: Rows, part: PartName) -> Design:
    """Return the terms and effects of a part at some rows."""
    terms = _terms(grid, rows, part)
    with np.errstate(divide="ignore"):
        offsets = np.stack([np.log(term.amount) for term in terms], axis=1)
    mean = [math.log(term.seconds) for term in terms]
    sd = [term.sd if term.device is None else _OWN_SD for term in terms]
    names = [term.key for term in terms]
    # The first effect is the level: it applies to all points and terms.
    names.append("level")
    columns, touches = [np.ones(len(rows))], [np.ones(len(terms))]
    mean.append(0.0)
    sd.append(_LEVEL_SD if grid.problem.traffic.is_known else _UNKNOWN_LEVEL_SD)
    for effect_name, touched, deviation in _device_effects(grid.problem.devices, terms):
        names.append(effect_name)
        columns.append(np.ones(len(rows)))
        touches.append(touched)
        mean.append(0.0)
        sd.append(deviation)
    settings: dict[str, list[int]] = {}
    for name in dict.fromkeys(term.part for term in terms):
        for effect in effects_of(grid, name):
            names.append(effect.name)
            settings.setdefault(effect.setting, []).append(len(mean))
            columns.append(effect.indicator(rows))
            affected = [t.part == name and effect.term in (ALL_TERMS, t.name) for t in terms]
            touches.append(np.array(affected, dtype=float))
            mean.append(effect.mean)
            sd.append(effect.sd)
    types = _machine_types([term.name for term in terms], np.array(mean), np.array(sd))
    strong = tuple(_with_strong_effects(types[0], unknowns) for unknowns in settings.values())
    return Design(
        offsets, np.stack(columns, axis=1), np.stack(touches), types, tuple(names), strong
    )


def _device_effects(
    devices: Sequence[Device], terms: Sequence[_Term]
) -> Iterator[tuple[str, Floats, float]]:
    """Yield effects that several terms of devices share: name, touched terms, deviation.

    What the devices have in common is one unknown for each kind of term. A device is faster or
    slower than the others in all it computes, and its link is another unknown. Devices with the
    same description are nearly equal, but may be in different slots.
    """
    for name in dict.fromkeys(term.name for term in terms if term.device is not None):
        kind = [term.name == name for term in terms]
        yield f"{name} of all devices", np.array(kind, dtype=float), _TERM_SD
    descriptions = [device.description for device in devices]
    for description in dict.fromkeys(descriptions):
        same = [i for i, other in enumerate(descriptions) if other == description]
        is_theirs = np.array([term.device in same for term in terms], dtype=float)
        is_link = np.array([term.name == "upload" for term in terms], dtype=float)
        if not is_theirs.any():
            continue
        if len(same) < len(devices):
            yield f"{description}", is_theirs * (1 - is_link), _MODEL_SD
        for index in same:
            is_own = np.array([term.device == index for term in terms], dtype=float)
            if len(same) > 1:
                yield f"device {index}", is_own * (1 - is_link), _SAME_MODEL_SD
            is_known = devices[index].link_gb_s is not None
            yield (
                f"link of device {index}",
                is_own * is_link,
                _KNOWN_LINK_SD if is_known else _LINK_SD,
            )


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


def _with_strong_effects(usual: MachineType, unknowns: Sequence[int]) -> MachineType:
    """Return the usual type of machine with strong effects of one setting."""
    sd = usual.sd.copy()
    sd[list(unknowns)] = np.maximum(sd[list(unknowns)], _STRONG_EFFECT_SD)
    return replace(usual, weight=_STRONG_EFFECT_PROBABILITY, sd=sd)


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
    work = _layers_by_device(grid, rows)
    passes = tokens * _passes_per_token(grid, rows)
    active = traffic.fixed_read_bytes + traffic.layers * traffic.read_bytes
    resident = traffic.fixed_read_bytes + traffic.layers * traffic.movable_bytes / 2
    host_layers = work.host_layers
    uploaded = host_layers * _uploads(grid, rows)
    found = [
        _Term(
            "prompt",
            "host",
            traffic.read_bytes * _HOST_COMPUTE_S_PER_BYTE,
            tokens * host_layers,
            _HOST_COMPUTE_SD,
        )
    ]
    for device, share, held, is_first in work.of_devices():
        computed = share * traffic.fixed_read_bytes
        computed += (held + is_first * uploaded) * traffic.read_bytes
        found += [
            _Term(
                "prompt",
                "compute",
                active * _COMPUTE_S_PER_BYTE,
                tokens * computed / active,
                device=device,
            ),
            _Term(
                "prompt",
                "pass",
                _PASS_S + resident / _DEVICE_BYTES_PER_S,
                passes * share,
                device=device,
            ),
            _Term(
                "prompt",
                "upload",
                upload_s(traffic, _link_gb_s(grid.problem.devices, device or 0)),
                passes * is_first * uploaded,
                device=device,
            ),
        ]
    if work.has_several:
        found.append(_Term("prompt", "hop", _HOP_PASS_S, passes * work.hops, _HOP_SD))
    if grid.column_of("op_offload") is not None:
        seconds = cpu_prompt_s(traffic, grid.problem.hardware.cores)
        computed = tokens * (host_layers - uploaded)
        found.append(_Term("prompt", "processor", seconds, computed))
    return found


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
    work = _layers_by_device(grid, rows)
    # Size of the KV cache relative to f16, whose K and V take 2 bytes each.
    cache = (
        grid.numbers(rows, "cache_type_k", kv_bytes, DEFAULT_KV_TYPE)
        + grid.numbers(rows, "cache_type_v", kv_bytes, DEFAULT_KV_TYPE)
    ) / 4.0
    cache_s = traffic.kv_bytes * goal.depth / _DEVICE_BYTES_PER_S
    fixed_s = _TOKEN_S + traffic.fixed_read_bytes / _DEVICE_BYTES_PER_S
    found = [
        _Term(
            "generation",
            "host",
            traffic.read_bytes / _HOST_BYTES_PER_S + _READBACK_S,
            tokens * work.host_layers,
        )
    ]
    for device, share, held, _ in work.of_devices():
        found += [
            _Term("generation", "device", fixed_s, tokens * share, device=device),
            _Term(
                "generation",
                "device_experts",
                traffic.read_bytes / _DEVICE_BYTES_PER_S,
                tokens * held,
                device=device,
            ),
            _Term(
                "generation",
                "cache",
                cache_s,
                tokens * share * np.nan_to_num(cache, nan=1.0),
                device=device,
            ),
        ]
    if work.has_several:
        found.append(_Term("generation", "hop", _HOP_TOKEN_S, tokens * work.hops, _HOP_SD))
    return found


@dataclass(frozen=True, slots=True)
class _Layers:
    """The layers of the points as the terms need them.

    Attributes:
        host_layers: layers whose experts are in system RAM, on any device, of shape (points,).
        shares: each device's share of all layers, of shape (points, devices).
        held: layers whose experts are on each device, of shape (points, devices).
        is_first: 1 for the device that computes the prompts of host layers: (points, devices).
        hops: devices with layers beyond the first, of shape (points,).
        has_several: whether there are several devices.
    """

    host_layers: Floats
    shares: Floats
    held: Floats
    is_first: Floats
    hops: Floats
    has_several: bool

    def of_devices(self) -> Iterator[tuple[int | None, Floats, Floats, Floats]]:
        """Yield each device with its columns; a single one is None."""
        for index in range(self.shares.shape[1]):
            device = index if self.has_several else None
            yield device, self.shares[:, index], self.held[:, index], self.is_first[:, index]


def _layers_by_device(grid: PointGrid, rows: Rows) -> _Layers:
    """Return the layers of rows, on one device if their placement is unknown."""
    traffic = grid.problem.traffic
    if grid.work is None:
        host = _host_layers(grid, rows)
        ones = np.ones((len(rows), 1))
        held = (traffic.layers - host)[:, None]
        return _Layers(host, ones, held, ones, np.zeros(len(rows)), has_several=False)
    work = grid.work.at(rows)
    total = work.layers.sum(axis=1) + work.whole_layers
    total = np.maximum(total, 1.0)
    # A layer that is in system RAM as a whole counts with all its weights.
    fixed_layers = traffic.fixed_read_bytes / traffic.layers / traffic.read_bytes
    host = work.host_layers.sum(axis=1) + work.whole_layers * (1.0 + fixed_layers)
    held = np.maximum(work.layers - work.host_layers, 0.0) * (traffic.layers / total)[:, None]
    shares = work.layers / total[:, None]
    hops = np.maximum(work.used_devices - 1.0, 0.0)
    return _Layers(host, shares, held, work.uploads, hops, has_several=True)


def _host_layers(grid: PointGrid, rows: Rows) -> Floats:
    """Return the host layers of each row: 0 without an axis, half for a text."""
    most = float(grid.problem.traffic.layers)
    pinned = grid.problem.space.pinned.get("n_cpu_moe", 0)
    values = grid.numbers(rows, HOST_LAYERS_AXIS, number, pinned)
    layers: Floats = np.clip(np.nan_to_num(values, nan=most / 2), 0.0, most)
    return layers


def _link_gb_s(devices: Sequence[Device], index: int) -> float | None:
    """Return the speed of a device's link, or None if it is unknown."""
    return devices[index].link_gb_s if devices else None


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
