"""Where each layer, the output layer and each tensor of a model lies under given settings.

Follows llama.cpp's `llama-model.cpp` (`load_tensors`) for `--split-mode layer` and `none`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autofit.errors import UsageError
from autofit.model.gguf.block_type import BLOCK_TYPES
from autofit.model.gguf.header import TensorInfo
from autofit.model.placement.tensor_override import Override, device_of_buffer, overrides_of
from autofit.model.sizes.inventory import BlockInventory, ModelInventory
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device

HOST = -1
_ALIGNMENT = 128
_DENSE_FFN = re.compile(r"\.ffn_(up|down|gate)\.")
_ROW_STEP = 512  # CUDA pads quantized rows to it (`ggml-cuda.cu`, MATRIX_ROW_PADDING)


@dataclass(frozen=True, slots=True)
class Placement:
    """Indices of devices, `HOST` for system RAM.

    `units` are the blocks and, last, the output layer. `experts` holds by block where its
    experts lie, one entry for each place that has some of them; `dense_ffn` likewise for the
    matrices that `n_cpu_ffn` moves. `weights` are bytes by device
    index, `HOST` included. `is_overridden` tells that some rule is set, which switches
    pipeline parallelism off even where nothing matches it.
    """

    devices: tuple[Device, ...]
    units: tuple[int, ...]
    experts: tuple[tuple[int, ...], ...]
    dense_ffn: tuple[tuple[int, ...], ...]
    weights: dict[int, int]
    host_tensors: tuple[TensorInfo, ...]
    is_overridden: bool
    is_split: bool

    @property
    def output(self) -> int:
        """The device of the output layer."""
        return self.units[-1]

    @property
    def host_ffn_blocks(self) -> tuple[int, ...]:
        """The blocks on devices whose dense feed-forward is in system RAM."""
        return tuple(
            block
            for block, places in enumerate(self.dense_ffn)
            if HOST in places and self.units[block] != HOST
        )

    @property
    def host_expert_blocks(self) -> tuple[int, ...]:
        """The blocks whose experts are in system RAM, in part or whole."""
        return tuple(block for block, places in enumerate(self.experts) if HOST in places)

    def layers_on(self, device: int) -> tuple[int, int] | None:
        """First and last block of a device's slice, None where it has none."""
        blocks = [block for block, place in enumerate(self.units[:-1]) if place == device]
        return (blocks[0], blocks[-1]) if blocks else None


def place(inventory: ModelInventory, candidate: Candidate, devices: Sequence[Device]) -> Placement:
    """Where everything lies for a candidate.

    Args:
        inventory: the model.
        candidate: `devices`, `n_gpu_layers`, `tensor_split`, `split_mode`, `main_gpu`,
            `override_tensor`, `n_cpu_moe` and `n_cpu_ffn` are used. Without a `tensor_split`
            the devices' usable memory decides, as the free memory does in the runtime.
        devices: those of the machine, in the runtime's order.

    Raises:
        UsageError: a device or buffer that is not there, or a value that is none.
    """
    used = used_devices(candidate, devices)
    units = _units(inventory, candidate, used)
    rules = overrides_of(candidate)
    targets = {rule.buffer: device_of_buffer(rule.buffer, used) for rule in rules}
    weights: dict[int, int] = defaultdict(int)
    experts: list[set[int]] = [set() for _ in inventory.blocks]
    dense_ffn: list[set[int]] = [set() for _ in inventory.blocks]
    host_tensors = []
    tensors = _tensors(inventory)
    padded = {
        device: _padded(inventory, pads_rows=_pads_rows(used[device]))
        for device in range(len(used))
    }
    padded[HOST] = _padded(inventory, pads_rows=False)
    for at, (known, rule) in enumerate(zip(tensors, _matches(inventory, rules), strict=True)):
        block = known.block
        if rule is not None:
            device = targets[rule.buffer]
        elif block is None:
            device = units[-1] if known.is_output else HOST
        else:
            device = units[block]
        if block is not None and known.is_expert:
            experts[block].add(device)
        elif block is not None and known.is_dense_ffn:
            dense_ffn[block].add(device)
        if device == HOST:
            host_tensors.append(known.tensor)
        weights[device] += padded[device][at]
    if inventory.is_output_tied and units[-1] == HOST:
        weights[HOST] -= inventory.embedding_bytes  # nothing is duplicated there
    return Placement(
        devices=used,
        units=units,
        experts=tuple(tuple(sorted(places)) for places in experts),
        dense_ffn=tuple(tuple(sorted(places)) for places in dense_ffn),
        weights=dict(weights),
        host_tensors=tuple(host_tensors),
        is_overridden=bool(rules),
        is_split=candidate.get_str("split_mode", "layer") == "layer",
    )


def used_devices(candidate: Candidate, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices a candidate names, in its order; all where it names none.

    Raises:
        UsageError: a device that is not there.
    """
    named = candidate.get_str("devices", "")
    if named == "none":
        return ()
    by_name = {device.name: device for device in devices}
    names = named.split(",") if named else list(by_name)
    missing = [name for name in names if name not in by_name]
    if missing:
        raise UsageError(
            f"there is no device {', '.join(missing)}", f"known: {', '.join(by_name) or 'none'}"
        )
    used = tuple(by_name[name] for name in names)
    if candidate.get_str("split_mode", "layer") == "none" and used:
        return used[candidate.get_int("main_gpu", 0) :][:1]
    return used


def offloaded_units(inventory: ModelInventory, candidate: Candidate) -> int:
    """How many units, counted from the last, go to devices."""
    layers = candidate.get_int("n_gpu_layers", inventory.units)
    return inventory.units if layers < 0 else min(layers, inventory.units)


def split_units(split: Sequence[float], offloaded: int) -> tuple[int, ...]:
    """The index of the device of each offloaded unit for a `tensor_split`.

    A unit `k` goes to the first device whose running share of the split is above
    `k / offloaded`, all in 32-bit floats as in llama.cpp.
    """
    shares = np.cumsum(np.asarray(split, dtype=np.float32), dtype=np.float32)
    shares /= shares[-1]
    at = np.arange(offloaded, dtype=np.float32) / np.float32(offloaded)
    return tuple(int(index) for index in np.searchsorted(shares, at, side="right"))


def _units(
    inventory: ModelInventory, candidate: Candidate, used: tuple[Device, ...]
) -> tuple[int, ...]:
    offloaded = offloaded_units(inventory, candidate) if used else 0
    on_host = (HOST,) * (inventory.units - offloaded)
    if not offloaded:
        return on_host
    split = _split(candidate)[: len(used)]
    split += [0.0] * (len(used) - len(split))
    if sum(split) <= 0:
        split = [max(device.usable_mib, 0.0) for device in used]
    if sum(split) <= 0:
        split = [1.0] * len(used)
    return on_host + split_units(split, offloaded)


def _split(candidate: Candidate) -> list[float]:
    text = candidate.get_str("tensor_split", "").replace("/", ",")
    try:
        return [float(share) for share in text.split(",") if share]
    except ValueError as error:
        raise UsageError(
            f"tensor_split: '{text}' is no list of numbers", "give a share for each device: 3,4"
        ) from error


# Rules are expressions of few letters; of one candidate they are asked for again and again.
@lru_cache(maxsize=256)
def _matches(
    inventory: ModelInventory, rules: tuple[Override, ...]
) -> tuple[Override | None, ...]:
    """For each tensor the first rule that matches its name."""
    return tuple(
        next((rule for rule in rules if rule.pattern.search(known.tensor.name)), None)
        for known in _tensors(inventory)
    )


def padded_bytes(tensor: TensorInfo, device: Device | None) -> int:
    """What a tensor takes in a buffer: rows of quantized weights may need more on CUDA."""
    return _padded_bytes(tensor, pads_rows=device is not None and _pads_rows(device))


def _pads_rows(device: Device) -> bool:
    return device.name.startswith(("CUDA", "ROCm", "MUSA"))


@lru_cache(maxsize=8)
def _padded(inventory: ModelInventory, *, pads_rows: bool) -> tuple[int, ...]:
    """What each tensor takes, on a device that pads rows or on one that does not."""
    return tuple(_padded_bytes(known.tensor, pads_rows=pads_rows) for known in _tensors(inventory))


def _padded_bytes(tensor: TensorInfo, *, pads_rows: bool) -> int:
    nbytes = tensor.nbytes
    block_type = BLOCK_TYPES.get(tensor.type_id)
    if pads_rows and block_type:
        tail = tensor.shape[0] % _ROW_STEP if tensor.shape else 0
        if block_type.elements > 1 and tail:
            nbytes += block_type.row_bytes(_ROW_STEP - tail)
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class _KnownTensor:
    """A tensor that is loaded, with its block; None for embeddings and the output layer."""

    block: int | None
    tensor: TensorInfo
    is_output: bool = False
    is_expert: bool = False
    is_dense_ffn: bool = False


@lru_cache(maxsize=8)
def _tensors(inventory: ModelInventory) -> tuple[_KnownTensor, ...]:
    """Every tensor that is loaded; blocks for prediction are not."""
    skipped = {block.index for block in inventory.blocks if block.is_nextn}
    experts = [frozenset(block.expert_tensors) for block in inventory.blocks]
    found = [
        _KnownTensor(
            block,
            tensor,
            is_expert=tensor.name in experts[block],
            is_dense_ffn=_DENSE_FFN.search(tensor.name) is not None,
        )
        for block, tensor in _numbered(inventory.tensors, inventory.blocks)
        if block not in skipped
    ]
    for name, nbytes in (
        ("token_embd.weight", inventory.embedding_bytes),
        ("output.weight", inventory.output_bytes),
    ):
        tensor = TensorInfo(name, (), 0, 0, nbytes)
        found.append(_KnownTensor(None, tensor, is_output=name == "output.weight"))
    return tuple(found)


def _numbered(
    tensors: tuple[TensorInfo, ...], blocks: tuple[BlockInventory, ...]
) -> tuple[tuple[int, TensorInfo], ...]:
    if not tensors:
        return tuple((block.index, tensor) for block in blocks for tensor in _stand_ins(block))
    numbered = ((tensor.name.split("."), tensor) for tensor in tensors)
    return tuple(
        (int(parts[1]), tensor)
        for parts, tensor in numbered
        if parts[0] == "blk" and parts[1].isdigit()
    )


def _stand_ins(block: BlockInventory) -> Iterator[TensorInfo]:
    """Tensors for a block known only by sums: one for each kind that can be moved apart."""
    names = block.expert_tensors
    down = next((name for name in names if "ffn_down" in name), "")
    first = next((name for name in names if name != down), "")
    rest = block.device_bytes - block.dense_ffn_bytes
    for name, nbytes in (
        (f"blk.{block.index}.attn_norm.weight", rest),
        (f"blk.{block.index}.ffn_up.weight", block.dense_ffn_bytes),
        (first, block.expert_up_gate_bytes),
        (down, block.expert_down_bytes),
    ):
        if nbytes:
            yield TensorInfo(name, (), 0, 0, nbytes)
