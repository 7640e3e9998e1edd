"""The allocations of a launch, buffer by buffer, in MiB.

Sizes follow what llama.cpp logs: weights, KV and recurrent state by layer; a compute buffer
that grows with the ubatch and holds staged host weights; a driver context per process and
device; run-time pools that appear with the first large batch and grow with depth.
"""

from __future__ import annotations

from dataclasses import dataclass

from fakes.machine import Device, Machine
from fakes.model import Model
from fakes.placement import Placement, Share
from fakes.settings import KV_BYTES, RefusedError, Settings, pad

MIB = 1024 * 1024
# A batch of this many tokens is large: kernels then want workspaces of their own.
LARGE_BATCH = 32


@dataclass(frozen=True, slots=True)
class DeviceBuffers:
    """The buffers of one device at load time."""

    context_mib: float
    weights_mib: float
    kv_mib: float
    recurrent_mib: float
    compute_mib: float
    cache_mib: float

    @property
    def static_mib(self) -> float:
        """Everything but the run-time pools."""
        return (
            self.context_mib + self.weights_mib + self.kv_mib + self.recurrent_mib
            + self.compute_mib + self.cache_mib
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostBuffers:
    """The buffers of the host."""

    weights_mib: float
    repack_mib: float
    is_mapped: bool
    is_pinned: bool
    kv_mib: float
    compute_mib: float
    output_mib: float

    @property
    def anonymous_mib(self) -> float:
        """System memory in MiB, without the page cache."""
        weights = self.repack_mib + (0.0 if self.is_mapped else self.weights_mib)
        return weights + self.kv_mib + self.compute_mib + self.output_mib + 250.0


@dataclass(frozen=True, slots=True)
class ExpertCache:
    """A cache of host experts on the device that uploads: a slot holds one expert of a layer."""

    slots: int = 0
    layers: int = 0  # that are cached
    left_out: int = 0  # layers that the budget is too small for
    mib: float = 0.0
    hosted_mib: float = 0.0  # the experts of the layers that are cached


@dataclass(frozen=True, slots=True)
class Allocation:
    """All buffers of a launch, by place in the device list."""

    devices: tuple[DeviceBuffers, ...]
    host: HostBuffers
    has_pipeline: bool
    cache: ExpertCache = ExpertCache()

    @property
    def copies(self) -> int:
        """Scheduler copies, as the log says."""
        return 4 if self.has_pipeline else 1


def kv_row_bytes(model: Model, settings: Settings) -> float:
    """Bytes of one token's K and V in one layer."""
    keys = model.n_head_kv * model.head_k * KV_BYTES[settings.cache_type_k]
    values = model.n_head_kv * model.head_v * KV_BYTES[settings.cache_type_v]
    return keys + values


def swa_cells(model: Model, settings: Settings) -> int:
    """Cells of a sliding-window layer, all slots together."""
    if settings.swa_full or not model.n_swa:
        return settings.context
    streams = 1 if settings.kv_unified else settings.parallel
    window = model.n_swa * (settings.parallel if settings.kv_unified else 1)
    return pad(min(settings.slot_context, window + settings.ubatch)) * streams


def kv_mib(model: Model, settings: Settings, share: Share) -> float:
    """The KV cache of the layers of one share."""
    cells = share.full_layers * settings.context + share.swa_layers * swa_cells(model, settings)
    return cells * kv_row_bytes(model, settings) / MIB


def recurrent_mib(model: Model, settings: Settings, share: Share) -> float:
    """The state of the recurrent layers of one share."""
    return share.recurrent_layers * model.state_bytes * settings.parallel / MIB


def _activations_mib(model: Model, settings: Settings) -> float:
    """Intermediate results of one ubatch; without flash attention the scores come on top."""
    used = max(1, model.n_used)
    width = used * 2 * (model.n_embd + model.n_ff_expert) + 6 * model.n_embd
    mask = settings.context * settings.ubatch * 2
    scores = 0 if settings.flash_attn else 4 * model.n_head * settings.ubatch * settings.context
    return (4.0 * settings.ubatch * width + mask + scores) / MIB


def has_pipeline(settings: Settings, placement: Placement, machine: Machine) -> bool:
    """Return whether pipeline parallelism turns on."""
    return (
        len(settings.devices) > 1
        and settings.n_gpu_layers >= 1
        and placement.cpu.layers == 0
        and settings.split_mode == "layer"
        and settings.kv_offload
        and (not placement.has_overrides or machine.runtime.keeps_pipeline)
        and not any(
            machine.devices[i].backend == "RPC" and machine.runtime.log_format == "old"
            for i in settings.devices
        )
    )


def compute_mib(
    model: Model,
    settings: Settings,
    placement: Placement,
    device: Device,
    *,
    place: int,
    pipeline: bool,
) -> float:
    """The compute buffer of the device at this place."""
    share = placement.shares[place]
    works = share.layers or share.guest_bytes or place == placement.output
    # All host weights are staged on one device, whoever owns their layer.
    staged = placement.largest_hosted_bytes / MIB if place == settings.uploader else 0.0
    if not works and not staged:
        return 0.0
    activations = _activations_mib(model, settings)
    logits = 4.0 * model.n_vocab * settings.parallel / MIB if place == placement.output else 0.0
    size = max(activations + logits, staged + 0.6 * activations)
    return size * (1.0 + device.pipeline_growth) if pipeline else size


def expert_cache(model: Model, settings: Settings, placement: Placement) -> ExpertCache:
    """Return the cached part of host experts: whole slots, and layers whose experts are all there.

    Raises:
        RefusedError: there can be no cache.
    """
    if not settings.moe_cache_mib:
        return ExpertCache()
    if not model.n_expert:
        raise RefusedError("MoE cache requires a MoE model")
    if settings.uploader is None:
        raise RefusedError("MoE cache requires a GPU backend")
    if settings.split_mode == "tensor":
        raise RefusedError("MoE cache does not support tensor parallelism")
    whole = sum(share.whole_layers for share in placement.shares)
    if not whole:
        return ExpertCache()
    hosted_mib = sum(share.whole_bytes for share in placement.shares) / MIB
    slot_mib = hosted_mib / whole / model.n_expert
    slots = min(int(settings.moe_cache_mib / slot_mib), whole * model.n_expert)
    if slots < model.n_used:
        raise RefusedError("MoE cache is too small to hold the experts of one token")
    layers = min(whole, slots // model.n_used)
    return ExpertCache(
        slots, layers, whole - layers, slots * slot_mib, hosted_mib * layers / whole
    )


def _device_buffers(
    model: Model,
    settings: Settings,
    placement: Placement,
    machine: Machine,
    *,
    pipeline: bool,
    cache_mib: float,
) -> tuple[DeviceBuffers, ...]:
    buffers = []
    for place, index in enumerate(settings.devices):
        device, share = machine.devices[index], placement.shares[place]
        weights = share.rest_bytes + share.expert_bytes + share.guest_bytes
        weights += model.output_bytes * placement.output_shares[place]
        on_device = settings.kv_offload
        buffers.append(
            DeviceBuffers(
                context_mib=device.context_mib,
                weights_mib=weights / MIB,
                kv_mib=kv_mib(model, settings, share) if on_device else 0.0,
                recurrent_mib=recurrent_mib(model, settings, share) if on_device else 0.0,
                compute_mib=compute_mib(
                    model, settings, placement, device, place=place, pipeline=pipeline
                ),
                cache_mib=cache_mib if place == settings.uploader else 0.0,
            )
        )
    return tuple(buffers)


def allocate(
    model: Model,
    settings: Settings,
    placement: Placement,
    machine: Machine,
    *,
    may_pipeline: bool = True,
) -> Allocation:
    """Everything that is allocated until the server is ready.

    Raises:
        RefusedError: there can be no cache of experts, and one was asked for.
    """
    cache = expert_cache(model, settings, placement)
    pipeline = may_pipeline and has_pipeline(settings, placement, machine)
    on_host = [placement.cpu] if settings.kv_offload else [placement.cpu, *placement.shares]
    # The mask of a ubatch, handed over from the host.
    inputs = 4.0 * settings.ubatch * settings.context / MIB
    is_mapped = settings.is_mapped
    repacked = placement.host_bytes - model.embedding_bytes if settings.repacks else 0
    return Allocation(
        devices=_device_buffers(
            model, settings, placement, machine, pipeline=pipeline, cache_mib=cache.mib
        ),
        host=HostBuffers(
            weights_mib=(placement.host_bytes - repacked) / MIB,
            repack_mib=repacked / MIB,
            is_mapped=is_mapped,
            is_pinned=bool(settings.devices)
            and not machine.is_unified
            and (not is_mapped or settings.registers_host)
            and placement.host_bytes / MIB <= machine.host.pinned_mib,
            kv_mib=sum(
                kv_mib(model, settings, share) + recurrent_mib(model, settings, share)
                for share in on_host
            ),
            compute_mib=max(inputs, 2.0)
            + (_activations_mib(model, settings) if not settings.devices else 0.0),
            output_mib=4.0 * model.n_vocab * settings.parallel / MIB,
        ),
        has_pipeline=pipeline,
        cache=cache,
    )


def pool_mib(
    model: Model,
    settings: Settings,
    placement: Placement,
    device: Device,
    *,
    place: int,
    tokens: int,
    depth: int,
) -> float:
    """Run-time pools of a device once a ubatch of `tokens` ended at `depth` was computed.

    They hold library handles and scratch, and one layer's KV widened to 16 bits where it is
    quantized; nothing of it is there before a batch is large.
    """
    share = placement.shares[place]
    is_staging = place == settings.uploader and placement.hosted_layers > 0
    is_busy = share.layers or place == placement.output or is_staging
    if tokens < LARGE_BATCH or not is_busy:
        return 0.0
    size = device.pool_mib + device.pool_kib_per_token * tokens / 1024
    if settings.is_kv_quantized and share.full_layers:
        # Grows in steps, as the kernels pad what they look at.
        cells = min(settings.slot_context, pad(depth, 4096))
        size += 2.0 * cells * model.n_head_kv * (model.head_k + model.head_v) / MIB
    return size


def uses_prefetch(model: Model, settings: Settings, placement: Placement, tokens: int) -> bool:
    """Return whether a ubatch of this many tokens has its host experts prefetched."""
    return (
        settings.prefetch_slots > 1
        and settings.uploader is not None
        and placement.hosted_layers > 0
        and tokens >= settings.op_offload_min_batch
        and tokens * model.n_used >= 2 * model.n_expert
    )


def slot_mib(placement: Placement) -> float:
    """One prefetch slot: the largest expert tensor in host memory."""
    return placement.largest_hosted_bytes / MIB
