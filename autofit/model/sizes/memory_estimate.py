"""Memory per device and of the host for any candidate, by arithmetic from the header alone.

What the runtime's own estimator or a launch reports takes the place of the arithmetic with
`with_reported`; what none of them counts (driver context, pools, slots, caches) stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autofit.model.placement.placed_layers import HOST, Placement, place
from autofit.model.sizes.expert_memory import cache_mib, prefetch_mib
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.model_graph import Run, graph_bytes
from autofit.model.sizes.repack import repacked_bytes
from autofit.model.sizes.run_time_memory import context_mib, page_table_mib, pool_mib
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.trial.measurement import ReportedMemory
from autofit.units import MIB

Estimator = Literal["runtime", "arithmetic"]
HOST_ROW = "host"  # the host's name among reported rows


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """What a candidate takes on one device, in MiB.

    `layers` are the first and last block of its slice, None where it has none; `output` tells
    whether the output layer lies there; `host_expert_layers` counts the layers of the slice
    whose experts are in system RAM, in part or whole. `kv_mib` holds recurrent states too;
    `other_mib` is what no buffer of the runtime shows, `prefetch_mib` and `expert_cache_mib`
    the parts of it for such experts.
    """

    name: str
    usable_mib: float
    layers: tuple[int, int] | None
    output: bool
    host_expert_layers: int
    weights_mib: float
    kv_mib: float
    compute_mib: float
    other_mib: float
    prefetch_mib: float = 0.0
    expert_cache_mib: float = 0.0

    @property
    def total_mib(self) -> float:
        """All of it."""
        return self.weights_mib + self.kv_mib + self.compute_mib + self.other_mib

    @property
    def free_mib(self) -> float:
        """What stays unused; negative where it does not fit."""
        return self.usable_mib - self.total_mib

    @property
    def fits(self) -> bool:
        """Whether it is no more than what may be used."""
        return self.free_mib >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """What a candidate takes of system RAM, in MiB.

    `is_mapped` tells that the weights are pages of the file, which the system may drop;
    repacked weights never are. `cache_mib` is the largest size of the prompt cache.
    """

    weights_mib: float
    repack_mib: float = 0.0
    kv_mib: float = 0.0
    compute_mib: float = 0.0
    cache_mib: float = 0.0
    is_mapped: bool = False

    @property
    def total_mib(self) -> float:
        """All of it, mapped or not."""
        return self.weights_mib + self.repack_mib + self.kv_mib + self.compute_mib + self.cache_mib

    @property
    def resident_mib(self) -> float:
        """What cannot be dropped."""
        return self.total_mib - (self.weights_mib if self.is_mapped else 0.0)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What a candidate takes, device by device in its order, and of the host."""

    devices: tuple[DeviceMemory, ...]
    host: HostMemory
    estimator: Estimator = "arithmetic"
    is_pipelined: bool = False

    @property
    def fits(self) -> bool:
        """Whether every device has room."""
        return all(device.fits for device in self.devices)

    def on(self, name: str) -> DeviceMemory:
        """The device of a name; KeyError where it is not used."""
        for device in self.devices:
            if device.name == name:
                return device
        raise KeyError(name)


def estimate_memory(
    inventory: ModelInventory,
    candidate: Candidate,
    devices: Sequence[Device],
    *,
    is_pipelined: bool | None = None,
    outputs: int | None = None,
    cache_ram_mib: float = 0.0,
) -> MemoryEstimate:
    """What a candidate takes, by arithmetic.

    Args:
        inventory: the model.
        candidate: its settings; one that is absent has the runtime's default, except that
            `parallel` is 1.
        devices: those of the machine, in the runtime's order.
        is_pipelined: whether pipeline parallelism is on; None to tell from the settings.
        outputs: rows of logits; None for one a slot, as in the server.
        cache_ram_mib: the host's prompt cache, as in `--cache-ram`.

    Raises:
        UsageError: a value that is none, or a device or buffer that is not there.
    """
    placement = place(inventory, candidate, devices)
    run = Run.of(inventory, candidate, placement, is_pipelined=is_pipelined, outputs=outputs)
    compute = graph_bytes(inventory, placement, run)
    host = _host(candidate, placement, run, compute.get(HOST, 0))
    pinned = 0.0 if host.is_mapped else host.weights_mib
    rows = []
    for index, device in enumerate(placement.devices):
        blocks = [b for b, unit in enumerate(placement.units[:-1]) if unit == index]
        hosted = sum(HOST in placement.experts[block] for block in blocks)
        stages = run.staging_device == index and bool(placement.host_expert_blocks)
        prefetch = prefetch_mib(inventory, candidate, placement) if stages else 0.0
        cache = cache_mib(inventory, candidate, placement) if stages else 0.0
        kv = sum(run.cache_bytes[b] for b in blocks) if run.is_cache_offloaded else 0
        other = _other_mib(inventory, placement, run, index)
        rows.append(
            DeviceMemory(
                name=device.name,
                usable_mib=device.usable_mib,
                layers=placement.layers_on(index),
                output=placement.output == index,
                host_expert_layers=hosted,
                weights_mib=placement.weights.get(index, 0) / MIB,
                kv_mib=kv / MIB,
                compute_mib=compute.get(index, 0) / MIB,
                other_mib=other + page_table_mib(device.name, pinned) + prefetch + cache,
                prefetch_mib=prefetch,
                expert_cache_mib=cache,
            )
        )
    return MemoryEstimate(
        devices=tuple(rows),
        host=replace(host, cache_mib=cache_ram_mib),
        is_pipelined=run.copies > 1,
    )


def with_reported(
    estimate: MemoryEstimate,
    reported: Mapping[str, ReportedMemory],
    estimator: Estimator = "runtime",
) -> MemoryEstimate:
    """The estimate with buffers that the runtime told, by device name and `host`.

    Builds with an expert cache count it into the context; it is not counted twice.
    Rows that are not told keep the arithmetic. Repacked weights are in no row of the
    runtime's estimator and stay.
    """
    devices = tuple(
        replace(
            device,
            weights_mib=reported[device.name].model_mib,
            kv_mib=_without_cache(device, reported[device.name].context_mib),
            compute_mib=reported[device.name].compute_mib,
        )
        if device.name in reported
        else device
        for device in estimate.devices
    )
    host = estimate.host
    if HOST_ROW in reported:
        row = reported[HOST_ROW]
        host = replace(
            host,
            weights_mib=row.model_mib,
            kv_mib=row.context_mib,
            compute_mib=row.compute_mib,
        )
    told = reported.keys() >= {device.name for device in estimate.devices}
    return replace(
        estimate,
        devices=devices,
        host=host,
        estimator=estimator if told else estimate.estimator,
    )


def _without_cache(device: DeviceMemory, context_mib: float) -> float:
    """What the runtime tells of the context, less an expert cache that it counts into it."""
    has_cache = context_mib - device.kv_mib > device.expert_cache_mib / 2
    return context_mib - device.expert_cache_mib if has_cache else context_mib


def _other_mib(inventory: ModelInventory, placement: Placement, run: Run, index: int) -> float:
    """Driver context and pools of one device."""
    name = placement.devices[index].name
    units = placement.units
    blocks = [b for b, unit in enumerate(units[:-1]) if unit == index]
    stages = run.staging_device == index and bool(placement.host_expert_blocks)
    has_experts = stages or any(index in places for places in placement.experts)
    is_widened = run.is_cache_quantized and bool(blocks)
    widened = max(run.cache_elements[b] for b in blocks) if is_widened else 0
    total = context_mib(name)
    if blocks or units[-1] == index:
        total += pool_mib(
            name,
            placement.devices[index].description,
            rows=run.rows,
            n_embd=inventory.n_embd,
            has_experts=has_experts,
            widened_elements=widened,
        )
    return total


def _host(candidate: Candidate, placement: Placement, run: Run, compute: int) -> HostMemory:
    repacked = repacked_bytes(candidate, placement)
    kv = sum(
        size
        for size, unit in zip(run.cache_bytes, placement.units, strict=False)
        if unit == HOST or not run.is_cache_offloaded
    )
    mode = candidate.get_str("load_mode", "auto")
    return HostMemory(
        weights_mib=(placement.weights.get(HOST, 0) - repacked) / MIB,
        repack_mib=repacked / MIB,
        kv_mib=kv / MIB,
        compute_mib=compute / MIB,
        is_mapped=mode in ("auto", "mmap") and not any(d.is_unified for d in placement.devices),
    )
