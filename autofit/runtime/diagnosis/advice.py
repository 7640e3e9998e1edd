"""What to change after a failure, in settings and by how much, from what the log tells.

All figures are estimates: a layer is taken as the file's size over its layers (the experts
are nearly all of it), a compute buffer as growing with the ubatch, KV with the context.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from autofit.model.sizes.kv_cache import DEFAULT_KV_TYPE, kv_element_bytes
from autofit.runtime.logs.server_log import ServerLog
from autofit.trial.outcome import Outcome, OutOfMemory, Rejected

# Kept free beyond what was asked: pools that grow at the first large batch. Servers with less
# than 130 MiB left were seen to die there.
_RESERVE_MIB = 256.0
_CONTEXT_STEP = 256
_SMALLEST_UBATCH = 64
# Bytes per element of a cache type and the next narrower one that is worth trying.
_NARROWER = {"f32": "f16", "f16": "q8_0", "bf16": "q8_0", "q8_0": "q4_0"}


def advise(
    outcome: Outcome | None, log: ServerLog, groups: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Changes that would avoid a failure, the most useful first; none where nothing is known.

    `groups` are the values of the line that showed the failure.
    """
    if isinstance(outcome, OutOfMemory):
        of_place = _for_device if outcome.where == "device" else _for_host
        return tuple(of_place(outcome, log))
    if isinstance(outcome, Rejected) and outcome.reason == "context_exceeded":
        return tuple(_for_context(log, groups or {}))
    return ()


def expert_layer_mib(log: ServerLog) -> float | None:
    """About how much memory one layer takes, None where the log does not tell."""
    layers = log.integer("layers")
    file_mib = log.values.get("file_mib")
    if file_mib is None and "file_gib" in log.values:
        file_mib = float(log.values["file_gib"]) * 1024
    if not layers or file_mib is None:
        return None
    return float(file_mib) / layers


def shortfall_mib(outcome: OutOfMemory, log: ServerLog) -> float | None:
    """How much more memory was needed for this one allocation, a reserve included.

    It is what was asked, less what the device had left; all of it where that is not known.
    """
    if outcome.requested_mib is None:
        return None
    left = 0.0
    for device in log.devices:
        if device.name == outcome.device and device.free_mib is not None:
            left = max(0.0, device.free_mib - log.mib(device=device.name))
    return max(0.0, outcome.requested_mib - left) + _RESERVE_MIB


def _for_device(outcome: OutOfMemory, log: ServerLog) -> Iterator[str]:
    short = shortfall_mib(outcome, log)
    if outcome.buffer in {"compute", "pool"}:
        yield from _smaller_ubatch(outcome, log, short)
    if outcome.buffer == "kv":
        yield from _narrower_kv(outcome, log)
        yield from _shorter_context(outcome, log, short)
    yield from _less_on_device(outcome, log, short)
    yield from _other_device(outcome, log, short)
    if outcome.buffer == "weights" or outcome.device is None:
        return
    if outcome.buffer in {"compute", "pool"}:
        yield from _shorter_context(outcome, log, _RESERVE_MIB if short is None else short)
    if outcome.buffer == "pool" and log.mib("kv", outcome.device) > 0:
        yield from _narrower_kv(outcome, log)


def _smaller_ubatch(outcome: OutOfMemory, log: ServerLog, short: float | None) -> Iterator[str]:
    ubatch = log.integer("ubatch")
    if ubatch is None:
        yield "lower ubatch by half"
        return
    if ubatch <= _SMALLEST_UBATCH:
        return
    smaller = ubatch // 2
    asked = outcome.requested_mib
    if asked is None:
        saved = log.mib("compute", outcome.device) / 2
        yield f"lower ubatch {ubatch} -> {smaller}" + (
            f" (about {saved:.0f} MiB)" if saved else ""
        )
        return
    while (
        short is not None and asked * (1 - smaller / ubatch) < short and smaller > _SMALLEST_UBATCH
    ):
        smaller //= 2
    yield f"lower ubatch {ubatch} -> {smaller} (about {asked * (1 - smaller / ubatch):.0f} MiB)"


def _narrower_kv(outcome: OutOfMemory, log: ServerLog) -> Iterator[str]:
    used = str(log.values.get("cache_type_k", DEFAULT_KV_TYPE))
    narrower = _NARROWER.get(used)
    if narrower is None:
        return
    kv_mib = outcome.requested_mib if outcome.buffer == "kv" else log.mib("kv", outcome.device)
    if not kv_mib:
        return
    saved = kv_mib * (1 - kv_element_bytes(narrower) / kv_element_bytes(used))
    known = "" if "cache_type_k" in log.values else f" if it is {used} now"
    yield f"use {narrower} for cache_type_k and cache_type_v: saves {saved:.0f} MiB{known}"


def _shorter_context(outcome: OutOfMemory, log: ServerLog, short: float | None) -> Iterator[str]:
    context = log.integer("context")
    kv_mib = outcome.requested_mib if outcome.buffer == "kv" else log.mib("kv", outcome.device)
    if context is None or short is None or not kv_mib:
        return
    fitting = int(context * (1 - short / kv_mib)) // _CONTEXT_STEP * _CONTEXT_STEP
    if fitting >= _CONTEXT_STEP:
        fewer = context - fitting
        yield f"lower context {context} -> {fitting} ({fewer} tokens less: {short:.0f} MiB)"


def _less_on_device(outcome: OutOfMemory, log: ServerLog, short: float | None) -> Iterator[str]:
    layer = expert_layer_mib(log)
    is_moe = bool(log.integer("experts"))
    change = "raise n_cpu_moe" if is_moe else "lower n_gpu_layers"
    if layer is None:
        yield f"{change}: keep more of the model in host memory"
        return
    count = max(1, math.ceil((short or 0.0) / layer))
    layers = log.integer("layers") or count
    more = " or more: KV and compute buffers follow" if outcome.buffer == "weights" else ""
    if count <= layers:
        yield f"{change} by {count} (about {layer:.0f} MiB each){more}"


def _other_device(outcome: OutOfMemory, log: ServerLog, short: float | None) -> Iterator[str]:
    room = {
        device.name: device.free_mib - log.mib(device=device.name)
        for device in log.used_devices
        if device.name != outcome.device and device.free_mib is not None
    }
    layer = expert_layer_mib(log)
    needed = max(short or 0.0, layer or 0.0) + _RESERVE_MIB
    roomiest = max(room, key=lambda name: room[name], default=None)
    if outcome.device and roomiest and room[roomiest] > needed:
        yield (
            f"give {outcome.device} fewer layers in tensor_split: "
            f"{roomiest} has about {room[roomiest]:.0f} MiB left"
        )


def _for_host(outcome: OutOfMemory, log: ServerLog) -> Iterator[str]:
    held = log.host_mib("weights")
    mode = log.values.get("load_mode")
    if outcome.where == "pinned" or mode in {"none", "mlock", "mmap+mlock", "dio"}:
        asked = outcome.requested_mib if outcome.buffer == "weights" else held
        what = f" ({asked:.0f} MiB)" if asked else ""
        yield f"use load_mode mmap: weights in host memory{what} can then be paged out"
    layer = expert_layer_mib(log)
    for name, left in log.headroom_mib.items():
        count = int((left - _RESERVE_MIB * 4) // layer) if layer else 0
        if count > 0 and log.integer("experts"):
            yield f"lower n_cpu_moe by {count}: {name} has about {left:.0f} MiB left"
            break
    if outcome.buffer == "kv":
        yield from _narrower_kv(outcome, log)
        yield "lower context, or let the KV cache lie on the devices"
    if outcome.buffer == "compute":
        yield from _smaller_ubatch(outcome, log, shortfall_mib(outcome, log))
    if outcome.stage in {"prompt", "generate"}:
        yield "limit the prompt cache: it takes up to 8192 MiB of host memory if nothing is said"
    yield "free host memory, or give the container or cgroup more"


def _for_context(log: ServerLog, groups: Mapping[str, str]) -> Iterator[str]:
    slot = log.integer("context_per_slot")
    context = log.integer("context")
    needed = int(groups["tokens"]) if "tokens" in groups else None
    if needed and slot and context:
        per_slot = (needed // _CONTEXT_STEP + 1) * _CONTEXT_STEP
        total = math.ceil(per_slot * context / slot)
        yield f"raise context {context} -> {total} plus what is to be generated"
        if context > slot:
            yield f"or lower parallel: {context // slot} slots share the context"
    elif context:
        yield f"raise context {context}, or send shorter or fewer requests at a time"
    else:
        yield "raise context"
