r"""The device of each layer and each tensor of a model under given settings.

Layers follow llama.cpp's `llama-model.cpp` (`load_tensors`) for `--split-mode layer` and `none`.
Tensor overrides follow `llama-model-loader.cpp`: the first rule whose expression matches a part of
a tensor's name decides. The rules of `--override-tensor` come first, then `--n-cpu-moe`, then
`--n-cpu-ffn`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autofit.errors import UsageError
from autofit.model.gguf.block_type import BLOCK_TYPES
from autofit.model.gguf.header import TensorInfo
from autofit.model.sizes.inventory import ModelInventory
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device, backend_of

HOST = -1
CPU_BUFFER = "CPU"
# Matches no tensor. Any rule at all turns pipeline parallelism off.
NO_PIPELINE_RULE = f"^$={CPU_BUFFER}"
_EXPERT_PARTS = {
    "all": "up|down|gate|gate_up",
    "up_gate": "up|gate|gate_up",
    "down": "down",
}
_REMOTE_BUFFER = re.compile(r"RPC(?P<index>\d+)\[(?P<endpoint>.+)\]")
_BLOCK_TENSOR = re.compile(r"blk\.([0-9]{1,6})\.")
_DENSE_FFN = re.compile(r"\.ffn_(up|down|gate)\.")
_ALIGNMENT = 128
_ROW_STEP = 512  # CUDA pads quantized rows to this (`ggml-cuda.cu`, MATRIX_ROW_PADDING)
_PADS_ROWS = frozenset({"CUDA", "ROCm", "MUSA"})


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """A rule that sends tensors with a matching name to a buffer."""

    pattern: re.Pattern[str]
    buffer: str


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of every layer and tensor: an index into `devices`, or `HOST` for system RAM.

    `units` has the blocks and, last, the output layer. `experts` has the places of each block's
    experts, each place once. `dense_ffn` has the places of the matrices that `n_cpu_ffn` moves.
    `weights` are bytes by place. `is_overridden` is true if there is any rule. A rule turns
    pipeline parallelism off even if it matches nothing.
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
        """The place of the output layer."""
        return self.units[-1]

    @property
    def host_ffn_blocks(self) -> tuple[int, ...]:
        """Blocks on devices with dense feed-forward matrices in system RAM."""
        return tuple(
            block
            for block, places in enumerate(self.dense_ffn)
            if HOST in places and self.units[block] != HOST
        )

    @property
    def host_expert_blocks(self) -> tuple[int, ...]:
        """Blocks with some or all experts in system RAM."""
        return tuple(block for block, places in enumerate(self.experts) if HOST in places)

    def blocks_on(self, place: int) -> list[int]:
        """Return the blocks whose layer is in a place."""
        return [block for block, unit in enumerate(self.units[:-1]) if unit == place]


def place_tensors(
    inventory: ModelInventory, candidate: Candidate, devices: Sequence[Device]
) -> Placement:
    """Return the place of every layer and tensor for a candidate.

    Args:
        inventory: the model.
        candidate: its `devices`, `n_gpu_layers`, `tensor_split`, `split_mode`, `main_gpu`,
            `override_tensor`, `n_cpu_moe` and `n_cpu_ffn` are used. Without a `tensor_split`
            the usable memory of the devices decides, like the free memory in the runtime.
        devices: those of the machine, in the runtime's order.

    Raises:
        UsageError: a device or buffer that does not exist, or an invalid value.
    """
    used = used_devices(candidate, devices)
    units = _place_units(inventory, candidate, used)
    rules = read_overrides(candidate)
    targets = {rule.buffer: _find_buffer(rule.buffer, used) for rule in rules}
    weights: dict[int, int] = defaultdict(int)
    experts: list[set[int]] = [set() for _ in inventory.blocks]
    dense_ffn: list[set[int]] = [set() for _ in inventory.blocks]
    host_tensors = []
    padded = {
        index: _padded_sizes(inventory, pads_rows=backend_of(device.name) in _PADS_ROWS)
        for index, device in enumerate(used)
    }
    padded[HOST] = _padded_sizes(inventory, pads_rows=False)
    matches = zip(_loaded_tensors(inventory), _match(inventory, rules), strict=True)
    for number, (loaded, rule) in enumerate(matches):
        block = loaded.block
        if rule is not None:
            place = targets[rule.buffer]
        elif block is None:
            place = units[-1] if loaded.is_output else HOST
        else:
            place = units[block]
        if block is not None and loaded.is_expert:
            experts[block].add(place)
        elif block is not None and loaded.is_dense_ffn:
            dense_ffn[block].add(place)
        if place == HOST:
            host_tensors.append(loaded.tensor)
        weights[place] += padded[place][number]
    if inventory.is_output_tied and units[-1] == HOST:
        weights[HOST] -= inventory.embedding_bytes  # not duplicated there
    return Placement(
        devices=used,
        units=units,
        experts=tuple(tuple(sorted(places)) for places in experts),
        dense_ffn=tuple(tuple(sorted(places)) for places in dense_ffn),
        weights=dict(weights),
        host_tensors=tuple(host_tensors),
        is_overridden=bool(rules),
        is_split=splits_layers(candidate),
    )


def used_devices(candidate: Candidate, devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the devices in the order in which a candidate names them, or all if it names none.

    Raises:
        UsageError: a device that does not exist.
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


def splits_layers(candidate: Candidate) -> bool:
    """Return whether each device gets whole layers."""
    return candidate.get_str("split_mode", "layer") == "layer"


def offloaded_units(inventory: ModelInventory, candidate: Candidate) -> int:
    """Return how many units go to devices, counted from the last."""
    layers = candidate.get_int("n_gpu_layers", inventory.units)
    return inventory.units if layers < 0 else min(layers, inventory.units)


def split_units(split: Sequence[float], offloaded: int) -> tuple[int, ...]:
    """Return the device index of each offloaded unit under a `tensor_split`.

    Unit `k` goes to the first device whose cumulative share exceeds `k / offloaded`. The numbers
    are 32-bit floats, as in llama.cpp.
    """
    shares = np.cumsum(np.asarray(split, dtype=np.float32), dtype=np.float32)
    shares /= shares[-1]
    positions = np.arange(offloaded, dtype=np.float32) / np.float32(offloaded)
    return tuple(int(index) for index in np.searchsorted(shares, positions, side="right"))


def _place_units(
    inventory: ModelInventory, candidate: Candidate, used: tuple[Device, ...]
) -> tuple[int, ...]:
    offloaded = offloaded_units(inventory, candidate) if used else 0
    on_host = (HOST,) * (inventory.units - offloaded)
    if not offloaded:
        return on_host
    split = read_split(candidate)[: len(used)]
    split += [0.0] * (len(used) - len(split))
    if sum(split) <= 0:
        split = [max(device.usable_mib, 0.0) for device in used]
    if sum(split) <= 0:
        split = [1.0] * len(used)
    return on_host + split_units(split, offloaded)


def read_split(candidate: Candidate) -> list[float]:
    """Return a candidate's share of each device; empty if it has none.

    Raises:
        UsageError: the text is not a list of numbers.
    """
    text = candidate.get_str("tensor_split", "").replace("/", ",")
    try:
        return [float(share) for share in text.split(",") if share]
    except ValueError as error:
        raise UsageError(
            f"tensor_split: must be a list of numbers, not '{text}'",
            "give a share per device: 3,4",
        ) from error


def read_overrides(candidate: Candidate) -> tuple[TensorOverride, ...]:
    """Return the rules of a candidate in the order in which the runtime tries them.

    Raises:
        UsageError: a rule without a buffer, or an invalid regular expression.
    """
    rules = [_parse(rule) for rule in candidate.get_str("override_tensor", "").split(",") if rule]
    # The runtime has one rule for each block. All have one buffer, so a single rule is the same.
    for name, pattern in (("n_cpu_moe", expert_pattern), ("n_cpu_ffn", dense_pattern)):
        count = candidate.get_int(name, 0)
        if count > 0:
            rules.append(_compile(pattern(range(count)), CPU_BUFFER))
    return tuple(rules)


def _parse(rule: str) -> TensorOverride:
    pattern, separator, buffer = rule.partition("=")
    if not separator or not pattern or not buffer:
        raise UsageError(
            f"override_tensor: '{rule}' is not a rule",
            r"give EXPRESSION=BUFFER rules joined by commas, as in `blk\.0\.attn_q=CPU`",
        )
    return _compile(pattern, buffer)


def _compile(pattern: str, buffer: str) -> TensorOverride:
    try:
        return TensorOverride(re.compile(pattern), buffer)
    except re.error as error:
        raise UsageError(
            f"override_tensor: '{pattern}' is not a regular expression: {error}",
            "quote dots with a backslash; a comma ends a rule",
        ) from error


def _find_buffer(buffer: str, devices: Sequence[Device]) -> int:
    """Return the place of a buffer.

    A remote device `RPC1` has the buffer `RPC0[host:port]`: the number there counts the devices
    of one server.

    Raises:
        UsageError: there is no such buffer; the hint lists those that exist.
    """
    if buffer == CPU_BUFFER:
        return HOST
    for index, device in enumerate(devices):
        if device.name == buffer:
            return index
    remote = _REMOTE_BUFFER.fullmatch(buffer)
    if remote:
        served = [
            i for i, device in enumerate(devices) if remote["endpoint"] in device.description
        ]
        if int(remote["index"]) < len(served):
            return served[int(remote["index"])]
    raise UsageError(
        f"override_tensor: there is no buffer '{buffer}'",
        f"known: {', '.join([CPU_BUFFER, *(device.name for device in devices)])}",
    )


def expert_pattern(blocks: Iterable[int], partial: Mapping[int, str] | None = None) -> str:
    """Return an expression for the experts of some blocks.

    It matches only the named part, `up_gate` or `down`, of the blocks in `partial`.
    """
    by_part: dict[str, list[int]] = {}
    for block in blocks:
        by_part.setdefault((partial or {}).get(block, "all"), []).append(block)
    pieces = [
        rf"{_alternatives(by_part[part])}\.ffn_({names})"
        for part, names in _EXPERT_PARTS.items()
        if part in by_part
    ]
    joined = pieces[0] if len(pieces) == 1 else f"({'|'.join(pieces)})"
    return rf"blk\.{joined}_(ch|)exps"


def dense_pattern(blocks: Iterable[int]) -> str:
    """Return an expression for the dense feed-forward tensors of some blocks."""
    return rf"blk\.{_alternatives(blocks)}\.ffn_(up|down|gate)\."


def _alternatives(blocks: Iterable[int]) -> str:
    numbers = [str(block) for block in sorted(blocks)]
    return numbers[0] if len(numbers) == 1 else f"({'|'.join(numbers)})"


# There are few different rules, and those of one candidate are used many times.
@lru_cache(maxsize=256)
def _match(
    inventory: ModelInventory, rules: tuple[TensorOverride, ...]
) -> tuple[TensorOverride | None, ...]:
    """Return the first rule that matches each tensor's name, or None if no rule does."""
    return tuple(
        next((rule for rule in rules if rule.pattern.search(loaded.tensor.name)), None)
        for loaded in _loaded_tensors(inventory)
    )


@lru_cache(maxsize=8)
def _padded_sizes(inventory: ModelInventory, *, pads_rows: bool) -> tuple[int, ...]:
    return tuple(
        padded_bytes(loaded.tensor, pads_rows=pads_rows) for loaded in _loaded_tensors(inventory)
    )


def padded_bytes(tensor: TensorInfo, *, pads_rows: bool = False) -> int:
    """Return the bytes of a tensor in a buffer; CUDA pads the rows of quantized weights."""
    nbytes = tensor.nbytes
    block_type = BLOCK_TYPES.get(tensor.type_id)
    if pads_rows and block_type:
        tail = tensor.shape[0] % _ROW_STEP if tensor.shape else 0
        if block_type.elements > 1 and tail:
            nbytes += block_type.row_bytes(_ROW_STEP - tail)
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class _LoadedTensor:
    """A tensor with its block, which is None for embeddings and the output layer."""

    block: int | None
    tensor: TensorInfo
    is_output: bool = False
    is_expert: bool = False
    is_dense_ffn: bool = False


@lru_cache(maxsize=8)
def _loaded_tensors(inventory: ModelInventory) -> tuple[_LoadedTensor, ...]:
    """Return every tensor except those of blocks for multi-token prediction."""
    skipped = {block.index for block in inventory.blocks if block.is_nextn}
    experts = [frozenset(block.expert_tensors) for block in inventory.blocks]
    found = []
    for tensor in inventory.tensors:
        match = _BLOCK_TENSOR.match(tensor.name)
        block = int(match[1]) if match else None
        if block is not None and block not in skipped:
            is_expert = tensor.name in experts[block]
            is_dense_ffn = _DENSE_FFN.search(tensor.name) is not None
            found.append(
                _LoadedTensor(block, tensor, is_expert=is_expert, is_dense_ffn=is_dense_ffn)
            )
    for name, nbytes in (
        ("token_embd.weight", inventory.embedding_bytes),
        ("output.weight", inventory.output_bytes),
    ):
        tensor = TensorInfo(name, (), 0, 0, nbytes)
        found.append(_LoadedTensor(None, tensor, is_output=name == "output.weight"))
    return tuple(found)
