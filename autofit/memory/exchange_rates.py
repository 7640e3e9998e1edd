"""What memory can be traded for: the price of a layer's experts, of context, of a ubatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.kv_cache import CELL_STEP
from autofit.model.sizes.memory_estimate import MemoryEstimate, estimate_memory
from autofit.model.sizes.run_settings import batch_sizes
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.units import MIB

COMMON_CACHE_TYPES = ("f16", "q8_0", "q5_1", "q4_0")
_CONTEXT_STRIDE = 16 * 1024  # over which the price of 1,000 tokens is averaged


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRates:
    """Prices in MiB over all devices, or of the host without any.

    `expert_layer_mib` is 0 for a model without experts.
    `context_1k_mib` is the price of 1,000 tokens of context by KV type: cache and what the
    compute buffers grow by; `ubatch_512_mib` that of 512 more tokens computed at once.
    """

    expert_layer_mib: float
    context_1k_mib: Mapping[str, float] = field(default_factory=dict)
    ubatch_512_mib: float = 0.0


def exchange_rates(
    inventory: ModelInventory,
    candidate: Candidate,
    devices: Sequence[Device],
    cache_types: Sequence[str] = COMMON_CACHE_TYPES,
) -> ExchangeRates:
    """The prices at a candidate, with one type for K and V.

    Raises:
        UsageError: a value that is none, or a device or buffer that is not there.
    """
    context = candidate.get_int("context", 0) or inventory.context_train
    experts = [block.expert_bytes for block in inventory.expert_blocks]

    def total(**changes: str | int) -> float:
        estimate = estimate_memory(inventory, candidate.with_params(**changes), devices)
        rows = estimate.devices
        return sum(row.total_mib for row in rows) if rows else estimate.host.total_mib

    def context_price(cache_type: str) -> float:
        types = {"cache_type_k": cache_type, "cache_type_v": cache_type}
        more = total(context=context + _CONTEXT_STRIDE, **types)
        return (more - total(context=context, **types)) * 1000 / _CONTEXT_STRIDE

    batch, ubatch = batch_sizes(candidate, context)
    wider = ubatch + 512
    return ExchangeRates(
        expert_layer_mib=fmean(experts) / MIB if experts else 0.0,
        context_1k_mib={name: context_price(name) for name in cache_types},
        ubatch_512_mib=total(ubatch=wider, batch=max(batch, wider)) - total(ubatch=ubatch),
    )


def max_contexts(
    inventory: ModelInventory,
    candidate: Candidate,
    devices: Sequence[Device],
    cache_types: Sequence[str] = COMMON_CACHE_TYPES,
    *,
    host_mib: float | None = None,
) -> dict[str, int]:
    """The largest context that fits by KV type, all else as in the candidate; 0 where none does.

    No more than the model was trained for, in the runtime's steps of 256 cells a sequence.
    Without devices `host_mib` decides. A narrower type may reach less far than a wider one
    where a device has few layers: attention over long prompts makes f16 of one layer's cache.

    Raises:
        UsageError: a value that is none, or a device or buffer that is not there.
    """
    step = CELL_STEP * max(1, candidate.get_int("parallel", 1))
    most = inventory.context_train * max(1, candidate.get_int("parallel", 1)) // step

    def fits(cache_type: str, steps: int) -> bool:
        changed = candidate.with_params(
            context=steps * step, cache_type_k=cache_type, cache_type_v=cache_type
        )
        estimate = estimate_memory(inventory, changed, devices)
        if not estimate.devices and host_mib is not None:
            return estimate.host.total_mib <= host_mib
        return estimate.fits

    found = {}
    for cache_type in cache_types:
        low, high = 0, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(cache_type, middle) else (low, middle)
        found[cache_type] = low * step
    return found


@dataclass(frozen=True, slots=True)
class UnusedRoom:
    """A device with room for the experts of whole layers that lie in system RAM.

    `host_layers` are all layers that do.
    """

    device: str
    free_mib: float
    layer_mib: float
    host_layers: int

    @property
    def text(self) -> str:
        """The notice for a person."""
        count = min(int(self.free_mib // self.layer_mib), self.host_layers)
        layers = "one more expert layer" if count == 1 else f"{count} more expert layers"
        return (
            f"{self.device} has {self.free_mib:,.0f} MiB to spare, room for {layers} "
            f"of {self.layer_mib:,.0f} MiB as far as compute buffers allow, while experts sit "
            "in system RAM"
        )


def unused_rooms(
    inventory: ModelInventory, estimate: MemoryEstimate, headroom_mib: float = 0.0
) -> list[UnusedRoom]:
    """The devices left with room for a whole expert layer while experts are on the host.

    Args:
        inventory: the model.
        estimate: what a candidate takes.
        headroom_mib: what is to stay free on each device.
    """
    layers = [block.expert_bytes / MIB for block in inventory.expert_blocks]
    hosted = sum(device.host_expert_layers for device in estimate.devices)
    if not layers or not hosted:
        return []
    smallest = min(layers)
    return [
        UnusedRoom(device.name, device.free_mib - headroom_mib, smallest, hosted)
        for device in estimate.devices
        if device.free_mib - headroom_mib >= smallest
    ]
