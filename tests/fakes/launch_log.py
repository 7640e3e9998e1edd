"""The lines llama-server prints while it places weights, makes its context and gets ready."""

from __future__ import annotations

from collections.abc import Sequence

from fakes.allocation import swa_cells
from fakes.launch import Launch
from fakes.log import Log
from fakes.model import TYPES
from fakes.placement import buffer_name
from fakes.settings import KV_BYTES
from fakes.startup_log import host_buffer

_FLASH = {"on": "enabled", "off": "disabled"}
_TEMPLATE = (
    "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n<|im_start|>user\nHello<|im_end|>"
    "\n<|im_start|>assistant\nHi there<|im_end|>\n<|im_start|>user\nHow are you?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def used_devices(log: Log, launch: Launch, free: Sequence[float]) -> None:
    """Log the devices that the model is spread over."""
    for index in launch.settings.devices:
        device = launch.machine.devices[index]
        bus = "unknown id" if device.backend == "RPC" else f"0000:{index + 6:02x}:00.0"
        left = int(free[index] - device.context_mib)
        log.trace_line(
            f"llama_prepare_model_devices: using device {device.name} "
            f"({device.endpoint or device.description}) ({bus}) - {left} MiB free"
        )


def loading_tensors(log: Log, launch: Launch) -> None:
    """The line before weights are read, and the warning about the memory map."""
    settings = launch.settings
    log.trace_line(
        "load_tensors: loading model tensors, this can take a while... (load_mode = "
        f"{settings.load_mode})"
    )
    if log.verbosity >= 5:
        _assignments(log, launch)
    if settings.is_mapped and launch.placement.has_overrides and settings.devices:
        flag = "--load-mode none" if launch.machine.runtime.log_format == "new" else "--no-mmap"
        log.say(
            "W",
            "llama_model_loader: tensor overrides to CPU are used with mmap enabled - "
            f"consider using {flag} for better performance",
        )


def _assignments(log: Log, launch: Launch) -> None:
    names = {}
    for at, share in enumerate(launch.placement.shares):
        name = launch.machine.devices[launch.settings.devices[at]].name
        if share.layers:
            names |= dict.fromkeys(range(share.first, share.last + 1), name)
        if at == launch.placement.output:
            names[launch.model.n_layer] = name
    for layer in range(launch.model.units):
        log.say(
            "D",
            f"load_tensors: layer {layer:3d} assigned to device "
            f"{names.get(layer, 'CPU')}, is_swa = 0",
        )


def loaded_tensors(log: Log, launch: Launch) -> None:
    """Offloaded layers and the weights of each buffer."""
    placement, model = launch.placement, launch.model
    if placement.offloaded:
        log.trace_line("load_tensors: offloading output layer to GPU")
        repeating = min(placement.offloaded, model.units) - 2
        log.trace_line(f"load_tensors: offloading {max(0, repeating)} repeating layers to GPU")
    log.trace_line(f"load_tensors: offloaded {placement.offloaded}/{model.units} layers to GPU")
    host = launch.allocation.host
    rows = [
        (buffer_name(launch.machine, index), launch.allocation.devices[at].weights_mib)
        for at, index in enumerate(launch.settings.devices)
    ]
    name = host_buffer(launch.machine, launch.settings, is_mapped=host.is_mapped)
    at = 0 if host.is_mapped else len(rows)
    rows[at:at] = [(name, host.weights_mib), ("CPU_REPACK", host.repack_mib)]
    for buffer, mib in rows:
        if mib > 0:
            log.trace_line(f"load_tensors: {buffer:>12} model buffer size = {mib:8.2f} MiB")


def context_lines(log: Log, launch: Launch) -> None:
    """The settings of the context, as applied."""
    settings, model = launch.settings, launch.model
    log.trace_line("cmn  common_init_: added <|endoftext|> logit bias = -inf")
    log.trace_line("cmn  common_init_: added <|im_end|> logit bias = -inf")
    log.trace_line("llama_context: constructing llama_context")
    for key, value in (
        ("n_seq_max", settings.parallel),
        ("n_ctx", settings.context),
        ("n_ctx_seq", settings.slot_context),
        ("n_batch", settings.batch),
        ("n_ubatch", settings.ubatch),
        ("causal_attn", 1),
        ("flash_attn", _FLASH.get(settings.flash_mode, "auto")),
        ("kv_unified", str(settings.kv_unified).lower()),
        ("freq_base", "1000000.0"),
        ("freq_scale", 1),
        ("n_rs_seq", 0),
        ("n_outputs_max", settings.parallel),
        ("n_outputs_max_per_seq", 1),
    ):
        log.trace_line(f"llama_context: {key:<21} = {value}")
    if settings.slot_context < model.context_train:
        log.trace_line(
            f"llama_context: n_ctx_seq ({settings.slot_context}) < n_ctx_train "
            f"({model.context_train}) -- the full capacity of the model will not be "
            "utilized"
        )
    elif settings.slot_context > model.context_train:
        log.say(
            "W",
            f"llama_context: n_ctx_seq ({settings.slot_context}) > n_ctx_train "
            f"({model.context_train}) -- possible training context overflow",
        )
    name = host_buffer(launch.machine, settings)
    log.trace_line(
        f"llama_context: {name:>10}  output buffer size = "
        f"{launch.allocation.host.output_mib:8.2f} MiB"
    )


def cache_line(log: Log, launch: Launch, at: int | None) -> None:
    """The KV buffer of one device, or of the host."""
    if at is None:
        name, mib = "CPU", launch.allocation.host.kv_mib
    else:
        name = buffer_name(launch.machine, launch.settings.devices[at])
        mib = launch.allocation.devices[at].kv_mib
    if mib > 0:
        log.trace_line(f"llama_kv_cache: {name:>10} KV buffer size = {mib:8.2f} MiB")


def cache_total(log: Log, launch: Launch) -> None:
    """The KV cache as a whole, and recurrent state."""
    settings, model = launch.settings, launch.model
    shares = (*launch.placement.shares, launch.placement.cpu)
    layers = round(sum(share.full_layers + share.swa_layers for share in shares))
    swa = round(sum(share.swa_layers for share in shares))
    cells = settings.context * (layers - swa) + swa_cells(model, settings) * swa
    keys = cells * model.n_head_kv * model.head_k * KV_BYTES[settings.cache_type_k] / 1024**2
    values = cells * model.n_head_kv * model.head_v * KV_BYTES[settings.cache_type_v] / 1024**2
    streams = 1 if settings.kv_unified else settings.parallel
    log.trace_line(
        f"llama_kv_cache: size = {keys + values:7.2f} MiB ({settings.context:6d} cells, "
        f"{layers:3d} layers, {settings.parallel:2d}/{streams} seqs), "
        f"K ({settings.cache_type_k}): {keys:7.2f} MiB, "
        f"V ({settings.cache_type_v}): {values:7.2f} MiB"
    )
    rotation = "n_rot" if launch.machine.runtime.log_format == "new" else "attn_rot"
    for side in "kv":
        log.trace_line(
            f"llama_kv_cache: {rotation}_{side} = 0, n_embd_head_k_all = {model.head_k}"
        )
    for at, index in enumerate(settings.devices):
        if mib := launch.allocation.devices[at].recurrent_mib:
            name = buffer_name(launch.machine, index)
            log.trace_line(f"llama_memory_recurrent: {name:>10} RS buffer size = {mib:8.2f} MiB")


def expert_cache_lines(log: Log, launch: Launch) -> None:
    """The cache of host experts, or why there is none."""
    cache, settings = launch.allocation.cache, launch.settings
    if not settings.moe_cache_mib:
        return
    if not cache.layers:
        why = "no layer has all of its experts in host memory, MoE cache is disabled"
        log.say("W", f"llama_moe_cache: {why}")
        return
    if cache.left_out:
        left = f"{cache.left_out} layers, they are not cached"
        log.say("W", f"llama_moe_cache: MoE cache budget is too small for {left}")
    name = buffer_name(launch.machine, settings.devices[settings.uploader or 0])
    log.trace_line(
        f"llama_moe_cache: {name:>10} MoE cache size = {cache.mib:8.2f} MiB for "
        f"{cache.hosted_mib:.2f} MiB of host experts"
    )
    kind = next(t.type_id for t in launch.model.tensors if "_exps" in t.name)
    percent = 100.0 * cache.slots / (cache.layers * launch.model.n_expert)
    log.trace_line(
        f"llama_moe_cache: {cache.layers:2d} layers, {TYPES[kind][0]}: {cache.slots:5d} slots "
        f"({percent:.1f}%)"
    )


def cache_hits(log: Log, launch: Launch) -> None:
    """Log the hit rate of the expert cache, at the end."""
    cache = launch.allocation.cache
    if not cache.layers or not launch.generated_tokens:
        return
    asked = launch.generated_tokens * cache.layers * launch.model.n_used
    rate = launch.speed.hit_rate
    hits = round(asked * rate)
    uploaded = (asked - hits) * cache.hosted_mib / cache.layers / launch.model.n_expert
    log.trace_line(
        f"llama_moe_cache: ubatch <= 8: hits = {hits}, misses = {asked - hits}, "
        f"hit rate = {100 * rate:.1f}%, uploaded = {uploaded:.0f} MiB"
    )


def reserving(log: Log, launch: Launch) -> None:
    """Log the fused operations of the devices; `auto` flash attention is decided here."""
    log.trace_line("sched_reserve: reserving ...")
    if launch.settings.flash_mode == "auto":
        found = "enabled" if launch.settings.flash_attn else "not supported, set to disabled"
        log.trace_line(f"resolve_fused_ops: Flash Attention {found}")
    log.trace_line("resolve_fused_ops: resolving fused DeepSeek V4 HC support:")
    for part in ("pre", "comb", "post"):
        log.trace_line(f"resolve_fused_ops: fused DeepSeek V4 HC {part} enabled")
    if launch.allocation.has_pipeline:
        log.trace_line("llama_context: pipeline parallelism enabled")


def compute_lines(log: Log, launch: Launch) -> None:
    """Compute buffers, the graph, and whether pipeline parallelism is on."""
    allocation, settings = launch.allocation, launch.settings
    for at, index in enumerate(settings.devices):
        name = buffer_name(launch.machine, index)
        mib = allocation.devices[at].compute_mib
        if mib > 0:
            log.trace_line(f"sched_reserve: {name:>10} compute buffer size = {mib:8.2f} MiB")
    name = host_buffer(launch.machine, settings)
    log.trace_line(
        f"sched_reserve: {name:>10} compute buffer size = {allocation.host.compute_mib:8.2f} MiB"
    )
    splits = 2 + 2 * launch.placement.hosted_layers + launch.placement.devices_in_use
    nodes = 63 * launch.model.n_layer + 9
    # Large batches split further where a device takes work on host weights.
    more = 24 if settings.uploader is not None and launch.placement.hosted_layers else 0
    rest = "input objects = 4 / 4, input tensors = 9 / 9"
    if launch.machine.runtime.log_format == "old":
        log.trace_line(f"sched_reserve: graph nodes  = {nodes}")
        batches = f"{splits + more} (with bs={settings.ubatch}), {splits} (with bs=1)"
        log.trace_line(f"sched_reserve: graph splits = {batches if more else splits}")
    elif more:
        sizes = f"pp bs={settings.ubatch}, tg bs=1"
        counts = f"nodes = {nodes} / {nodes}, splits = {splits + more} / {splits}"
        log.trace_line(f"sched_reserve: graph ({sizes}): {counts}, {rest}")
    else:
        rest = "input objects = 4, input tensors = 9"
        log.trace_line(f"sched_reserve: graph: nodes = {nodes}, splits = {splits}, {rest}")
    log.trace_line(f"sched_reserve: reserve took 111.09 ms, sched copies = {allocation.copies}")


def ready_lines(log: Log, launch: Launch, cache_ram: int, checkpoints: int) -> None:
    """From the thread pool to the template; the warm-up lies between."""
    settings = launch.settings
    unified = str(settings.kv_unified).lower()
    slot = min(settings.slot_context, launch.model.context_train)
    log.say(
        "I",
        f"srv    load_model: initializing, n_slots = {settings.parallel}, n_ctx_slot = "
        f"{slot}, kv_unified = '{unified}'",
    )
    log.trace_line("spec common_specu: no implementations specified for speculative decoding")
    for slot_id in range(settings.parallel):
        log.trace_line(f"slot   load_model: id  {slot_id} | task -1 | new slot, n_ctx = {slot}")
    if cache_ram:
        limit = "no limit" if cache_ram < 0 else f"{cache_ram} MiB"
        log.trace_line(f"srv    load_model: prompt cache is enabled, size limit: {limit}")
        log.trace_line("srv    load_model: use `--cache-ram 0` to disable the prompt cache")
    else:
        log.trace_line(
            "srv    load_model: prompt cache is disabled - use `--cache-ram N` to enable it"
        )
    log.trace_line(
        "srv    load_model: for more info see https://github.com/ggml-org/llama.cpp/pull/16391"
    )
    if not checkpoints:
        log.trace_line("srv    load_model: context checkpoints disabled")
    else:
        log.trace_line(
            f"srv    load_model: context checkpoints enabled, max = {checkpoints}, "
            "min spacing = 8192"
        )
    if cache_ram:
        log.trace_line(
            "srv          init: idle slots will be saved to prompt cache upon starting a new task"
        )
    else:
        log.say("W", "srv          init: --cache-idle-slots requires --cache-ram, disabling")
    log.trace_line(f"srv          init: init: chat template, example_format: '{_TEMPLATE}'")
    log.trace_line("srv          init: init: chat template, thinking = 0")
    log.trace_line("srv          init: preserve_reasoning kwarg: not supported by template")
