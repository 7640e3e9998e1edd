"""Changes of settings that avoid a failure, with amounts estimated from the log.

The size of a layer is estimated as the file's size divided by its number of layers, because almost
all bytes are experts. A compute buffer is assumed to grow with the ubatch, and the KV cache with
the context.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from autofit.model.sizes.kv_cache import CELL_STEP, DEFAULT_KV_TYPE, kv_element_bytes
from autofit.runtime.logs.server_log import ServerLog
from autofit.trial.outcome import Crashed, Outcome, OutOfMemory, Rejected

# Kept free beyond the requested memory, for pools that grow with the first large batch.
# Servers with less than 130 MiB left died there.
_RESERVE_MIB = 256.0
# With this much free memory a device is not full, whatever a driver reports.
_AMPLE_MIB = 2048.0
_CONTEXT_STEP = CELL_STEP
_SMALLEST_UBATCH = 64
# The narrower KV type that is worth a try.
_NARROWER = {"f32": "f16", "f16": "q8_0", "bf16": "q8_0", "q8_0": "q4_0"}


def advise(
    outcome: Outcome | None,
    log: ServerLog,
    groups: Mapping[str, str] | None = None,
    *,
    is_limit: bool = False,
) -> tuple[str, ...]:
    """Return the changes that would avoid a failure, the most useful first.

    `groups` are the values of the line that reports the failure. With `is_limit` the size of one
    allocation is the cause, not the memory of the device.
    """
    if isinstance(outcome, OutOfMemory):
        if is_limit and outcome.buffer != "weights":
            return tuple(_advise_smaller_buffer(outcome, log))
        advise_place = _advise_device if outcome.where == "device" else _advise_host
        return tuple(advise_place(outcome, log))
    if isinstance(outcome, Crashed) and outcome.reason == "device_lost":
        return tuple(_advise_fewer_devices(log))
    if isinstance(outcome, Rejected) and outcome.reason == "context_exceeded":
        return tuple(_raise_context(log, groups or {}))
    return ()


def has_enough_free(outcome: Outcome | None, log: ServerLog) -> bool:
    """Return whether a device had more free memory than an allocation that failed requested."""
    if not isinstance(outcome, OutOfMemory) or outcome.where != "device":
        return False
    free_mib = _free_mib(outcome, log)
    needed_mib = _AMPLE_MIB if outcome.requested_mib is None else outcome.requested_mib
    return free_mib is not None and free_mib >= needed_mib + _RESERVE_MIB


def expert_layer_mib(log: ServerLog) -> float | None:
    """Return the approximate memory of one layer, or None if the log lacks its sizes."""
    layers = log.integer("layers")
    file_mib = log.values.get("file_mib")
    if file_mib is None and "file_gib" in log.values:
        file_mib = float(log.values["file_gib"]) * 1024
    return float(file_mib) / layers if layers and file_mib is not None else None


def shortfall_mib(outcome: OutOfMemory, log: ServerLog) -> float | None:
    """Return the memory that was missing for the failed allocation, with a reserve.

    It is the requested memory less what the device had left, if that is known.
    """
    if outcome.requested_mib is None:
        return None
    left_mib = max(0.0, _free_mib(outcome, log) or 0.0)
    return max(0.0, outcome.requested_mib - left_mib) + _RESERVE_MIB


def _free_mib(outcome: OutOfMemory, log: ServerLog) -> float | None:
    """Return what the full device had left, or None if the log lacks it."""
    free = [log.free_mib(device) for device in log.devices if device.name == outcome.device]
    return free[0] if free else None


def _missing_mib(outcome: OutOfMemory, log: ServerLog) -> float | None:
    """Return the memory to free on the device.

    If the device's free memory is unknown, return half of a requested buffer. That is one step,
    and the next launch shows whether more is needed. Weights are requested in one piece, and are
    missing as a whole.
    """
    is_known = outcome.buffer == "weights" or _free_mib(outcome, log) is not None
    if outcome.requested_mib is None or is_known:
        return shortfall_mib(outcome, log)
    return outcome.requested_mib / 2


def _advise_device(outcome: OutOfMemory, log: ServerLog) -> Iterator[str]:
    short_mib = _missing_mib(outcome, log)
    is_compute = outcome.buffer in {"compute", "pool"}
    if is_compute:
        yield from _lower_ubatch(outcome, log, short_mib)
    if outcome.buffer == "kv":
        yield from _narrow_kv(outcome, log)
        yield from _lower_context(outcome, log, short_mib)
    yield from _move_to_host(outcome, log, short_mib)
    yield from _move_to_other_device(outcome, log, short_mib)
    if outcome.buffer == "weights" or outcome.device is None:
        return
    if is_compute:
        yield from _lower_context(outcome, log, _RESERVE_MIB if short_mib is None else short_mib)
    if outcome.buffer == "pool" and log.mib("kv", outcome.device) > 0:
        yield from _narrow_kv(outcome, log)


def _advise_smaller_buffer(outcome: OutOfMemory, log: ServerLog) -> Iterator[str]:
    """Yield the changes that make a buffer smaller, where moving layers does not."""
    if outcome.buffer == "kv":
        yield from _narrow_kv(outcome, log)
    else:
        yield from _lower_ubatch(outcome, log, None)
    yield "lower context, which also makes the buffer smaller: the driver limits buffer sizes"


def _advise_fewer_devices(log: ServerLog) -> Iterator[str]:
    if len(log.used_devices) > 1:
        yield (
            "the transfer between devices may be the cause: set split_mode to layer, or leave out "
            "a device"
        )


def _lower_ubatch(outcome: OutOfMemory, log: ServerLog, short_mib: float | None) -> Iterator[str]:
    ubatch = log.integer("ubatch")
    if ubatch is None:
        yield "halve ubatch"
        return
    if ubatch <= _SMALLEST_UBATCH:
        return
    smaller = ubatch // 2
    buffer_mib = outcome.requested_mib or log.mib("compute", outcome.device)
    needed_mib = short_mib or 0.0
    while buffer_mib * (1 - smaller / ubatch) < needed_mib and smaller > _SMALLEST_UBATCH:
        smaller //= 2
    saved_mib = buffer_mib * (1 - smaller / ubatch)
    saved = f" (saves about {saved_mib:.0f} MiB)" if saved_mib else ""
    yield f"lower ubatch from {ubatch} to {smaller}{saved}"


def _kv_mib(outcome: OutOfMemory, log: ServerLog) -> float | None:
    return outcome.requested_mib if outcome.buffer == "kv" else log.mib("kv", outcome.device)


def _narrow_kv(outcome: OutOfMemory, log: ServerLog) -> Iterator[str]:
    used = str(log.values.get("cache_type_k", DEFAULT_KV_TYPE))
    narrower = _NARROWER.get(used)
    kv_mib = _kv_mib(outcome, log)
    if narrower is None or not kv_mib:
        return
    saved_mib = kv_mib * (1 - kv_element_bytes(narrower) / kv_element_bytes(used))
    condition = "" if "cache_type_k" in log.values else f" if they are {used} now"
    yield (
        f"set cache_type_k and cache_type_v to {narrower} "
        f"(saves about {saved_mib:.0f} MiB{condition})"
    )


def _lower_context(outcome: OutOfMemory, log: ServerLog, short_mib: float | None) -> Iterator[str]:
    context = log.integer("context")
    kv_mib = _kv_mib(outcome, log)
    if context is None or short_mib is None or not kv_mib:
        return
    fitting = int(context * (1 - short_mib / kv_mib)) // _CONTEXT_STEP * _CONTEXT_STEP
    if fitting >= _CONTEXT_STEP:
        yield f"lower context from {context} to {fitting} (saves about {short_mib:.0f} MiB)"


def _move_to_host(outcome: OutOfMemory, log: ServerLog, short_mib: float | None) -> Iterator[str]:
    layer_mib = expert_layer_mib(log)
    change = "raise n_cpu_moe" if log.integer("experts") else "lower n_gpu_layers"
    if layer_mib is None:
        yield f"{change}: keep more of the model in host memory"
        return
    count = max(1, math.ceil((short_mib or 0.0) / layer_mib))
    if count <= (log.integer("layers") or count):
        is_minimum = outcome.buffer == "weights"
        amount = f"at least {count}" if is_minimum else f"{count}"
        reason = "; KV cache and compute buffers need memory too" if is_minimum else ""
        yield f"{change} by {amount} (about {layer_mib:.0f} MiB per layer){reason}"


def _move_to_other_device(
    outcome: OutOfMemory, log: ServerLog, short_mib: float | None
) -> Iterator[str]:
    free_mib = {
        device.name: free
        for device in log.used_devices
        if device.name != outcome.device and (free := log.free_mib(device)) is not None
    }
    needed_mib = max(short_mib or 0.0, expert_layer_mib(log) or 0.0) + _RESERVE_MIB
    other = max(free_mib, key=lambda name: free_mib[name], default=None)
    if outcome.device and other and free_mib[other] > needed_mib:
        yield (
            f"move layers from {outcome.device} to {other} with tensor_split "
            f"({other} has about {free_mib[other]:.0f} MiB left)"
        )


def _advise_host(outcome: OutOfMemory, log: ServerLog) -> Iterator[str]:
    mode = log.values.get("load_mode")
    if outcome.where == "pinned" or mode in {"none", "mlock", "mmap+mlock", "dio"}:
        is_weights = outcome.buffer == "weights"
        weights_mib = outcome.requested_mib if is_weights else log.host_mib("weights")
        size = f" ({weights_mib:.0f} MiB)" if weights_mib else ""
        yield f"set load_mode to mmap: weights in host memory{size} can then be paged out"
    layer_mib = expert_layer_mib(log)
    for name, left_mib in log.headroom_mib.items():
        count = int((left_mib - _RESERVE_MIB * 4) // layer_mib) if layer_mib else 0
        if count > 0 and log.integer("experts"):
            yield f"lower n_cpu_moe by {count}: {name} has about {left_mib:.0f} MiB left"
            break
    if outcome.buffer == "kv":
        yield from _narrow_kv(outcome, log)
        yield "lower context, or keep the KV cache on the devices"
    if outcome.buffer == "compute":
        yield from _lower_ubatch(outcome, log, shortfall_mib(outcome, log))
    if outcome.stage in {"prompt", "generate"}:
        yield from _limit_prompt_cache(log)
    yield "free host memory, or raise the memory limit of the container or cgroup"


def _limit_prompt_cache(log: ServerLog) -> Iterator[str]:
    """Yield the advice about the saved prompts in host memory."""
    limit_mib = log.values.get("cache_ram_mib")
    saved_mib = float(log.values.get("saved_prompt_mib", 0))
    if log.values.get("prompt_cache") == "off" or limit_mib == 0:
        return
    if limit_mib is not None and saved_mib > float(limit_mib):
        yield (
            f"set --cache-ram 0: a prompt of {saved_mib:,.0f} MiB was saved in host memory "
            f"despite the limit of {float(limit_mib):,.0f} MiB"
        )
    elif limit_mib is not None:
        yield (
            f"set --cache-ram to less than {float(limit_mib):,.0f} MiB, or to 0: saved prompts "
            "use host memory up to that limit"
        )
    elif saved_mib:
        yield f"set --cache-ram 0: a prompt of {saved_mib:,.0f} MiB was saved in host memory"
    else:
        yield "limit the prompt cache (--cache-ram): by default it uses 8192 MiB of host memory"


def _raise_context(log: ServerLog, groups: Mapping[str, str]) -> Iterator[str]:
    slot = log.integer("context_per_slot")
    context = log.integer("context")
    tokens = int(groups["tokens"]) if "tokens" in groups else None
    if tokens and slot and context:
        per_slot = (tokens // _CONTEXT_STEP + 1) * _CONTEXT_STEP
        total = math.ceil(per_slot * context / slot)
        yield f"raise context from {context} to {total} plus the tokens to generate"
        if context > slot:
            yield f"or lower parallel: {context // slot} slots share the context"
    elif context:
        yield f"raise context (now {context}), or send shorter requests, or fewer at a time"
    else:
        yield "raise context"
