"""The memory that layers, context and ubatch cost, and the settings that fit into free memory."""

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
    """The memory that one more unit of a setting costs.

    All are MiB over all devices, or MiB of system RAM if there is no device.

    Attributes:
        expert_layer_mib: cost of the experts of one layer, 0 for a model without experts.
        context_1k_mib: cost of 1,000 tokens of context, in cache and compute buffers, by KV
            type.
        ubatch_512_mib: cost of 512 more tokens in a ubatch.
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
    """Compute the costs around a candidate, with the same KV type for keys and values.

    Raises:
        UsageError: a value is not possible, or a device or buffer does not exist.
    """
    context = candidate.get_int("context", 0) or inventory.context_train
    experts = [block.expert_bytes for block in inventory.expert_blocks]

    def total_mib(**changes: str | int) -> float:
        estimate = estimate_memory(inventory, candidate.with_params(**changes), devices)
        rows = estimate.devices
        return sum(row.total_mib for row in rows) if rows else estimate.host.total_mib

    def context_cost_mib(cache_type: str) -> float:
        types = {"cache_type_k": cache_type, "cache_type_v": cache_type}
        more = total_mib(context=context + _CONTEXT_STRIDE, **types)
        return (more - total_mib(context=context, **types)) * 1000 / _CONTEXT_STRIDE

    batch, ubatch = batch_sizes(candidate, context)
    wider = ubatch + 512
    return ExchangeRates(
        expert_layer_mib=fmean(experts) / MIB if experts else 0.0,
        context_1k_mib={name: context_cost_mib(name) for name in cache_types},
        ubatch_512_mib=total_mib(ubatch=wider, batch=max(batch, wider)) - total_mib(ubatch=ubatch),
    )


def max_contexts(
    inventory: ModelInventory,
    candidate: Candidate,
    devices: Sequence[Device],
    cache_types: Sequence[str] = COMMON_CACHE_TYPES,
    *,
    host_mib: float | None = None,
) -> dict[str, int]:
    """Map each KV type to the largest context that fits, all other settings unchanged.

    A context is 0 if none fits, and at most the trained context. It is a multiple of the
    runtime's 256 cells a sequence. Without devices `host_mib` is the limit. On a device with few
    layers a narrower type may have a smaller context than a wider one, because attention over
    long prompts converts the cache of one layer to f16.

    Raises:
        UsageError: a value is not possible, or a device or buffer does not exist.
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
    """A device with room for the experts of whole layers that are in system RAM.

    `host_layers` counts all layers whose experts are in system RAM.
    """

    device: str
    free_mib: float
    layer_mib: float
    host_layers: int

    @property
    def text(self) -> str:
        """The notice about this device for the user."""
        count = min(int(self.free_mib // self.layer_mib), self.host_layers)
        layers = "one more expert layer" if count == 1 else f"{count} more expert layers"
        return (
            f"{self.device} has {self.free_mib:,.0f} MiB free, which is room for {layers} of "
            f"{self.layer_mib:,.0f} MiB if compute buffers allow it, while experts are in "
            "system RAM"
        )


def unused_rooms(
    inventory: ModelInventory,
    estimate: MemoryEstimate,
    free_mib: Mapping[str, float] | None = None,
) -> list[UnusedRoom]:
    """Return the devices with room for a whole expert layer, if experts are in system RAM.

    Args:
        inventory: the model.
        estimate: the predicted memory of a candidate.
        free_mib: the measured free memory by device; None to use the predicted one.
    """
    layers = [block.expert_bytes / MIB for block in inventory.expert_blocks]
    host_layers = sum(device.host_expert_layers for device in estimate.devices)
    if not layers or not host_layers:
        return []
    smallest = min(layers)
    free = {device.name: device.free_mib for device in estimate.devices}
    if free_mib is not None:
        free = {name: free_mib[name] for name in free if name in free_mib}
    return [
        UnusedRoom(name, mib, smallest, host_layers)
        for name, mib in free.items()
        if mib >= smallest
    ]
