"""The placement of a model's tensors under given settings, summed per device."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from fakes.machine import Machine
from fakes.model import DOWN, EXPERT_PARTS, FFN, GATE, PARTS, UP, Model, block_of, part_of
from fakes.settings import Settings

HOST = -1


@dataclass(slots=True)
class Share:
    """The data and work of one device (or the CPU); bytes and weights.

    `hosted_*` are experts of this device's layers that lie in host memory; `lent_*` are
    experts of its layers that lie on another device.
    """

    layers: int = 0
    full_layers: float = 0  # a part of one where layers are split over devices
    swa_layers: float = 0
    recurrent_layers: float = 0
    rest_bytes: int = 0
    rest_elements: int = 0
    expert_bytes: int = 0
    expert_elements: int = 0
    expert_layers: int = 0
    hosted_layers: int = 0
    hosted_bytes: int = 0
    hosted_elements: int = 0
    whole_layers: int = 0  # those of hosted_layers whose experts all lie in host memory
    whole_bytes: int = 0
    hosted_ffn_bytes: int = 0
    hosted_ffn_elements: int = 0
    lent_layers: int = 0
    guest_bytes: int = 0  # experts of other devices' layers
    first: int = HOST
    last: int = HOST


@dataclass(frozen=True, slots=True)
class Placement:
    """Shares by place in `Settings.devices`, the CPU's own, and totals."""

    shares: tuple[Share, ...]
    cpu: Share
    output: int  # place in the device list, HOST when not offloaded
    offloaded: int
    host_bytes: int  # weights in host memory, the token embedding included
    largest_hosted_bytes: int
    has_overrides: bool
    output_shares: tuple[float, ...] = ()  # of the output layer, by place

    @property
    def hosted_layers(self) -> int:
        """Layers on devices whose experts lie, in whole or in part, in host memory."""
        return sum(share.hosted_layers for share in self.shares)

    @property
    def devices_in_use(self) -> int:
        """The number of devices with layers."""
        return sum(share.layers > 0 for share in self.shares)


def _float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def device_of_units(split: Sequence[float], count: int, n_devices: int) -> list[int]:
    """The device of each of `count` offloaded units: the first whose running share exceeds k/A."""
    shares = list(split)[:n_devices] + [0.0] * (n_devices - len(split))
    total, sums = 0.0, []
    for share in shares:
        total = _float32(total + share)
        sums.append(total)
    sums = [_float32(value / total) for value in sums] if total else [1.0] * n_devices
    placed = []
    for unit in range(count):
        at = _float32(unit / count)
        placed.append(next((i for i, edge in enumerate(sums) if edge > at), n_devices - 1))
    return placed


@lru_cache(maxsize=8192)
def _matches(model: Model, regex: str) -> tuple[tuple[int, int, int, int, int], ...]:
    """(tensor, block, part, bytes, elements) of every tensor in a block that the regex finds."""
    search = re.compile(regex).search
    return tuple(
        (number, block, part_of(tensor.name), tensor.nbytes, tensor.elements)
        for number, tensor in enumerate(model.tensors)
        if (block := block_of(tensor.name)) is not None and search(tensor.name)
    )


Moved = dict[tuple[int, int], list[tuple[int, int, int]]]


def _moved(model: Model, overrides: tuple[tuple[str, str], ...], buffers: dict[str, int]) -> Moved:
    """By (block, part): what overrides move, as (target, bytes, elements); first match wins."""
    moved: Moved = {}
    seen: set[int] = set()
    for regex, buffer in overrides:
        target = buffers.get(buffer, HOST)
        for number, block, part, nbytes, elements in _matches(model, regex):
            if number not in seen:
                seen.add(number)
                moved.setdefault((block, part), []).append((target, nbytes, elements))
    return moved


@dataclass(slots=True)
class _Tally:
    shares: list[Share]
    cpu: Share
    host_bytes: int
    largest: int

    def add_block(self, model: Model, index: int, place: int, moved: Moved) -> None:
        block = model.blocks[index]
        own = self.cpu if place == HOST else self.shares[place]
        own.layers += 1
        own.first = index if own.first == HOST else own.first
        own.last = index
        own.full_layers += block.attention == "full"
        own.swa_layers += block.attention == "swa"
        own.recurrent_layers += block.attention == "recurrent"
        kept = list(block.nbytes)
        kept_elements = list(block.elements)
        hosted = lent = False
        for part in range(len(PARTS)):
            for target, nbytes, elements in moved.get((index, part), ()):
                if target == place:
                    continue
                kept[part] -= nbytes
                kept_elements[part] -= elements
                if target == HOST:
                    hosted |= self._to_host(own, part, nbytes, elements)
                    self.largest = max(self.largest, block.largest_expert_bytes)
                else:
                    lent = True
                    self.shares[target].guest_bytes += nbytes
                    self.shares[target].expert_elements += elements
        self._keep(own, kept, kept_elements)
        own.hosted_layers += hosted
        if hosted and block.expert_bytes and not any(kept[part] for part in EXPERT_PARTS):
            own.whole_layers += 1
            own.whole_bytes += block.expert_bytes
        own.lent_layers += lent
        if place == HOST:
            self.host_bytes += sum(kept)

    def _to_host(self, own: Share, part: int, nbytes: int, elements: int) -> bool:
        self.host_bytes += nbytes
        if part in EXPERT_PARTS:
            own.hosted_bytes += nbytes
            own.hosted_elements += elements
        else:
            own.hosted_ffn_bytes += nbytes
            own.hosted_ffn_elements += elements
        return True

    @staticmethod
    def _keep(own: Share, kept: list[int], elements: list[int]) -> None:
        own.rest_bytes += kept[0] + kept[FFN]
        own.rest_elements += elements[0] + elements[FFN]
        experts = kept[GATE] + kept[UP] + kept[DOWN]
        own.expert_bytes += experts
        own.expert_elements += elements[GATE] + elements[UP] + elements[DOWN]
        own.expert_layers += experts > 0


def place(
    model: Model, settings: Settings, machine: Machine, free_mib: Sequence[float]
) -> Placement:
    """The placement; without a tensor split, layers follow the devices' free memory (MiB)."""
    split = settings.tensor_split or tuple(max(1.0, free_mib[i]) for i in settings.devices)
    names = tuple(buffer_name(machine, i) for i in settings.devices)
    layers = settings.n_gpu_layers if names else 0
    if settings.split_mode == "tensor" and len(names) > 1:
        return _divided(_place(model, layers, (1.0,), settings.overrides, names[:1]), split)
    return _place(model, layers, split if len(names) > 1 else (1.0,), settings.overrides, names)


@lru_cache(maxsize=8192)
def _place(
    model: Model,
    offloaded: int,
    split: tuple[float, ...],
    overrides: tuple[tuple[str, str], ...],
    names: tuple[str, ...],
) -> Placement:
    units = device_of_units(split, offloaded, len(names)) if offloaded else []
    moved = _moved(model, overrides, {name: at for at, name in enumerate(names)})
    tally = _Tally([Share() for _ in names], Share(), model.embedding_bytes, 0)
    on_cpu = model.units - offloaded
    for index in range(model.n_layer):
        tally.add_block(model, index, units[index - on_cpu] if index >= on_cpu else HOST, moved)
    output = units[-1] if units else HOST
    if output == HOST:
        tally.host_bytes += model.output_bytes
    return Placement(
        shares=tuple(tally.shares),
        cpu=tally.cpu,
        output=output,
        offloaded=offloaded,
        host_bytes=tally.host_bytes,
        largest_hosted_bytes=tally.largest,
        has_overrides=bool(overrides),
        output_shares=tuple(float(place == output) for place in range(len(names))),
    )


# Of a layer that is split over devices, every device has all of these.
_COUNTED_ON_ALL = ("layers", "expert_layers", "first", "last")


def _divided(whole: Placement, split: Sequence[float]) -> Placement:
    """Divide every layer of a placement on one device; its host weights stay with the first."""
    total = sum(split)
    shares = []
    for place, part in enumerate(split):
        values = {
            one.name: getattr(whole.shares[0], one.name)
            for one in fields(Share)
            if one.name not in _COUNTED_ON_ALL
        }
        kept = {
            name: value * (place == 0 if "hosted" in name or "whole" in name else part / total)
            for name, value in values.items()
        }
        shares.append(replace(whole.shares[0], **kept))
    return replace(
        whole, shares=tuple(shares), output_shares=tuple(part / total for part in split)
    )


def buffer_name(machine: Machine, index: int) -> str:
    """The name of a device's buffer type, as `-ot` and the log spell it."""
    device = machine.devices[index]
    return f"RPC0[{device.endpoint}]" if device.backend == "RPC" else device.name
