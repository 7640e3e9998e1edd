"""A launch's parameters as the runtime takes them: defaults filled in, values clamped.

Parameters carry autofit's names (n_cpu_moe, tensor_split, ...). What the runtime refuses
raises `RefusedError` with the runtime's own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fakes.machine import Machine
from fakes.model import Model

Params = Mapping[str, Any]

# Bytes per element of the KV types llama-server takes.
KV_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
# Backends whose host weights lie in pinned memory of theirs, and are then never repacked.
PINNING = ("CUDA", "ROCm", "Vulkan", "SYCL")
_UNQUANTIZED = ("f32", "f16", "bf16")
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
# Parameters whose presence makes the runtime's own fit give up.
FIT_BLOCKERS = ("n_gpu_layers", "tensor_split", "override_tensor", "n_cpu_moe", "n_cpu_ffn",
                "cpu_moe")  # fmt: skip


class RefusedError(Exception):
    """The runtime refuses this combination; the text is its log line."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one launch."""

    devices: tuple[int, ...]  # indices in the machine's list, in the order asked for
    n_gpu_layers: int
    tensor_split: tuple[float, ...]
    overrides: tuple[tuple[str, str], ...]  # (regex, buffer name), first match wins
    context: int  # of all slots
    slot_context: int
    asked_context: int
    parallel: int
    kv_unified: bool
    batch: int
    ubatch: int
    cache_type_k: str
    cache_type_v: str
    flash_attn: bool
    flash_mode: str  # as asked: on, off or auto
    load_mode: str
    threads: int
    threads_batch: int
    uploader: int | None  # place of the device that computes large batches on host weights
    op_offload_min_batch: int
    prefetch_slots: int
    moe_cache_mib: float
    kv_offload: bool
    split_mode: str
    numa: str
    swa_full: bool
    wide_queue: bool
    registers_host: bool
    repacks: bool  # host weights are laid out again for the CPU, out of the map

    @property
    def is_mapped(self) -> bool:
        """True if weights come from a memory map."""
        return "mmap" in self.load_mode or self.load_mode == "mlock"

    @property
    def is_kv_quantized(self) -> bool:
        """True if part of the KV cache is narrower than 16 bits."""
        return self.cache_type_k not in _UNQUANTIZED or self.cache_type_v not in _UNQUANTIZED


def pad(value: float, step: int = 256) -> int:
    """The next multiple of `step`."""
    return int(-(-value // step) * step)


def _items(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return [item for item in str(value).replace("/", ",").split(",") if item]


def _number(params: Params, name: str, default: int) -> int:
    value = params.get(name, default)
    return default if value in ("auto", "all", "", None) else int(value)


def _is_on(params: Params, name: str, *, default: bool) -> bool:
    value = params.get(name, default)
    return value if isinstance(value, bool) else str(value) in ("on", "true", "1", "enabled")


@lru_cache(maxsize=4096)
def layer_override(index: int) -> tuple[str, str]:
    """The override that `-ncmoe` adds for one layer."""
    return rf"blk\.{index}{_EXPERTS}", "CPU"


@lru_cache(maxsize=4096)
def parse_overrides(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of regex and buffer name from `-ot`'s text.

    Raises:
        RefusedError: an entry has no buffer name.
    """
    pairs = []
    for item in text.split(","):
        if not item:
            continue
        regex, equals, buffer = item.partition("=")
        if not equals:
            raise RefusedError("invalid value")
        pairs.append((regex, buffer))
    return tuple(pairs)


def _overrides(params: Params, n_layer: int) -> tuple[tuple[str, str], ...]:
    asked = parse_overrides(str(params.get("override_tensor", "")))
    pairs: tuple[tuple[str, str], ...] = ()
    if _is_on(params, "cpu_moe", default=False):
        pairs += ((_EXPERTS, "CPU"),)
    for index in range(min(n_layer, _number(params, "n_cpu_moe", 0))):
        pairs += (layer_override(index),)
    for index in range(min(n_layer, _number(params, "n_cpu_ffn", 0))):
        pairs += ((rf"blk\.{index}\.ffn_(up|down|gate)\.", "CPU"),)
    # The first match wins, and the order is the command line's.
    return pairs + asked if params.get("layer_rules_first") else asked + pairs


def _devices(params: Params, machine: Machine) -> tuple[int, ...]:
    names = [device.name for device in machine.devices]
    chosen = params.get("devices")
    if chosen in (None, "", "auto"):
        order = range(len(names))
        return tuple(sorted(order, key=lambda i: machine.devices[i].backend != "RPC"))
    if chosen == "none":
        return ()
    indices = []
    for name in _items(chosen):
        if name not in names:
            raise RefusedError(f"invalid device: {name}")
        indices.append(names.index(name))
    if params.get("split_mode") == "none":
        main = _number(params, "main_gpu", 0)
        if main >= len(indices):
            raise RefusedError(f"invalid value for main_gpu: {main} (available devices: "
                               f"{len(indices)})")  # fmt: skip
        return (indices[main],) if main >= 0 else ()
    return tuple(indices)


def _uploader(params: Params, machine: Machine, devices: tuple[int, ...]) -> int | None:
    """The first device that accepts work on host weights; remote ones never do."""
    if not _is_on(params, "op_offload", default=True):
        return None
    places = (at for at, i in enumerate(devices) if machine.devices[i].backend != "RPC")
    return next(places, None)


def _prefetch_slots(params: Params, machine: Machine) -> int:
    kind = machine.runtime.prefetch
    slots = _number(params, "prefetch_slots", 0)
    if kind == "env":  # 1 stands for the default number, more than 8 for 8
        return 3 if slots == 1 else min(8, max(0, slots))
    if kind == "weights":  # one layer ahead, or nothing
        return 3 if slots or _is_on(params, "prefetch_weights", default=False) else 0
    return max(0, slots) if kind == "slots" else 0


def _contexts(
    params: Params, model: Model, parallel: int, *, unified: bool
) -> tuple[int, int, int]:
    asked = _number(params, "context", 0) or model.context_train
    if unified:
        return asked, pad(asked), pad(asked)
    slot = pad(asked / parallel)
    return asked, slot * parallel, slot


def _flash_attn(params: Params, head_k: int, head_v: int) -> tuple[bool, str, str]:
    type_k = str(params.get("cache_type_k", "f16"))
    type_v = str(params.get("cache_type_v", "f16"))
    for kind in (type_k, type_v):
        if kind not in KV_BYTES:
            raise RefusedError(f"Unsupported cache type: {kind}")
    mode = str(params.get("flash_attn", "auto"))
    is_on = mode in ("on", "auto", "1", "true", "True")
    if type_v not in _UNQUANTIZED and not is_on:
        raise RefusedError("quantized V cache requires flash_attn to be enabled")
    for side, kind, head in (("K", type_k, head_k), ("V", type_v, head_v)):
        if is_on and kind not in _UNQUANTIZED and head % 32:
            raise RefusedError(
                f"{side} cache type {kind} with block size 32 does not divide "
                f"n_embd_head_{side.lower()}={head}"
            )
    return is_on, type_k, type_v


def make_settings(params: Params, machine: Machine, model: Model) -> Settings:
    """The settings that these parameters mean on this machine for this model.

    Raises:
        RefusedError: the runtime does not accept them.
    """
    parallel = _number(params, "parallel", -1)
    if parallel == 0:
        raise RefusedError("error: invalid value for n_parallel\n")
    unified = _is_on(params, "kv_unified", default=parallel < 0)
    parallel = 4 if parallel < 0 else parallel
    asked, context, slot_context = _contexts(params, model, parallel, unified=unified)
    batch = min(asked, _number(params, "batch", 2048))
    flash_attn, type_k, type_v = _flash_attn(params, model.head_k, model.head_v)
    if str(params.get("flash_attn", "auto")) == "auto":
        flash_attn &= all(device.has_flash_kernel for device in machine.devices)
    if params.get("split_mode") == "tensor":
        if not flash_attn:
            raise RefusedError("SPLIT_MODE_TENSOR requires flash_attn to be enabled")
        if {type_k, type_v} & {"q4_1", "q5_0", "q5_1", "iq4_nl"}:
            raise RefusedError(f"SPLIT_MODE_TENSOR does not support {type_k}/{type_v} KV caches")
    devices = _devices(params, machine)
    layers = _number(params, "n_gpu_layers", -1)
    threads = _number(params, "threads", -1)
    threads = machine.host.cores if threads == -1 else threads
    threads = machine.host.logical if threads <= 0 else threads
    load_mode = str(params.get("load_mode", "auto"))
    return Settings(
        devices=devices,
        n_gpu_layers=model.units if layers < 0 else min(layers, model.units),
        tensor_split=tuple(float(x) for x in _items(params.get("tensor_split", ""))),
        overrides=_overrides(params, model.n_layer),
        context=context,
        slot_context=slot_context,
        asked_context=asked,
        parallel=parallel,
        kv_unified=unified,
        batch=batch,
        ubatch=min(batch, _number(params, "ubatch", 512) or batch),
        cache_type_k=type_k,
        cache_type_v=type_v,
        flash_attn=flash_attn,
        flash_mode=str(params.get("flash_attn", "auto")),
        load_mode="mmap" if load_mode == "auto" else load_mode,
        threads=threads,
        threads_batch=_number(params, "threads_batch", threads),
        uploader=_uploader(params, machine, devices),
        op_offload_min_batch=_number(params, "op_offload_min_batch", 32),
        prefetch_slots=_prefetch_slots(params, machine),
        moe_cache_mib=_number(params, "moe_cache_mib", 0) if machine.runtime.has_moe_cache else 0,
        kv_offload=_is_on(params, "kv_offload", default=True),
        split_mode=str(params.get("split_mode", "layer")),
        numa=str(params.get("numa", "")),
        swa_full=_is_on(params, "swa_full", default=False),
        wide_queue=str(params.get("cuda_scale_launch_queues", "")) in ("4x", "4"),
        repacks=_is_on(params, "repack", default=True)
        and not any(machine.devices[i].backend in PINNING for i in devices),
        registers_host=_is_on(params, "cuda_register_host", default=False),
    )
