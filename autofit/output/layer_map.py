"""The device of each layer of a model, read from the params of a candidate alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from autofit.errors import UsageError
from autofit.model.sizes.tensor_placement import read_overrides, split_units
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.device import HOST_NAME
from autofit.trial.parameter_groups import HOST_LAYER_PARAMS

Experts = Literal["on the device", "partly in system RAM", "in system RAM"]
_PARTS = ("gate", "up", "down")
# The params that place layers in system RAM, in the order in which the runtime reads them.
_HOST_PARAMS = ("override_tensor", *HOST_LAYER_PARAMS)


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """A layer with its device, `host` if it is not offloaded, and the place of its experts."""

    number: int
    device: str
    experts: Experts


def layer_map(candidate: Candidate, layers: int) -> tuple[PlacedLayer, ...]:
    """Return the layers of a model in order; empty if the runtime decides where they are.

    With several devices, `tensor_split` decides. The output layer, which follows the last one,
    is left out.
    """
    units = layers + 1
    offloaded = candidate.get_int("n_gpu_layers", -1)
    names = [name for name in candidate.get_str("devices", "").split(",") if name]
    if offloaded < 0 or not layers:
        return ()
    offloaded = 0 if names == ["none"] else min(offloaded, units)
    devices = _devices(candidate, names, offloaded)
    if devices is None:
        return ()
    hosted = hosted_parts(candidate, layers)
    all_devices = [HOST_NAME] * (units - offloaded) + devices
    return tuple(
        PlacedLayer(number, device, _experts(device, hosted.get(number, 0)))
        for number, device in enumerate(all_devices[:layers])
    )


def _devices(candidate: Candidate, names: Sequence[str], offloaded: int) -> list[str] | None:
    """Return the device of each offloaded unit, or None if the runtime decides."""
    if not offloaded:
        return []
    if not names:
        return None
    if len(names) == 1:
        return [names[0]] * offloaded
    try:
        split = [float(x) for x in candidate.get_str("tensor_split", "").split(",") if x]
    except ValueError:
        return None
    if not sum(split) > 0:
        return None
    split = (split + [0.0] * len(names))[: len(names)]
    return [names[index] for index in split_units(split, offloaded)]


def _experts(device: str, hosted: int) -> Experts:
    if device == HOST_NAME or hosted == len(_PARTS):
        return "in system RAM"
    return "partly in system RAM" if hosted else "on the device"


def host_layers(candidate: Candidate, layers: int | None) -> int | None:
    """Return the number of layers whose experts, or dense feed-forwards, are in system RAM.

    A layer that is not offloaded counts too. Return None if the runtime decides, or if the model's
    number of `layers` must be known and is not.
    """
    offloaded = candidate.get_int("n_gpu_layers", -1)
    if not places_host_layers(candidate):
        if offloaded <= 0 or layers is None or candidate.params.get("devices", "none") == "none":
            return None
        return max(0, layers + 1 - offloaded)  # the output, too, counts as offloaded
    if layers is None:
        if "override_tensor" in candidate.params:
            return None
        return candidate.get_int("n_cpu_moe", 0) or candidate.get_int("n_cpu_ffn", 0)
    left = range(max(0, layers + 1 - offloaded) if offloaded >= 0 else 0)
    return len({*left, *hosted_parts(candidate, layers)} & {*range(layers)})


def places_host_layers(candidate: Candidate) -> bool:
    """Return whether the params place experts, or feed-forwards, of layers in system RAM."""
    return any(name in candidate.params for name in _HOST_PARAMS)


def hosted_parts(candidate: Candidate, layers: int) -> dict[int, int]:
    """Return by layer how many of the three expert tensors are in system RAM."""
    params = tuple(
        (name, candidate.params[name]) for name in _HOST_PARAMS if name in candidate.params
    )
    return dict(_hosted_parts(params, layers))


@lru_cache(maxsize=256)
def _hosted_parts(params: tuple[tuple[str, ParamValue], ...], layers: int) -> dict[int, int]:
    try:
        rules = read_overrides(Candidate(dict(params)))
    except UsageError:
        return {}
    found: dict[int, int] = {}
    for layer in range(layers):
        for part in _PARTS:
            name = f"blk.{layer}.ffn_{part}"
            expert, dense = f"{name}_exps.weight", f"{name}.weight"
            rule = next(
                (r for r in rules if r.pattern.search(expert) or r.pattern.search(dense)), None
            )
            if rule is not None and rule.buffer == "CPU":
                found[layer] = found.get(layer, 0) + 1
    return found
