"""The memory of a candidate on each device and on the host, estimated from the header alone.

`apply_reported` replaces estimated buffers with those that the runtime's planner or a launch
reports. Memory that these do not count (driver context, pools, slots, caches) stays estimated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autofit.model.sizes.compute_buffer import compute_buffer_bytes
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.run_settings import RunSettings
from autofit.model.sizes.tensor_placement import HOST, Placement, place_tensors, read_split
from autofit.model.sizes.unreported_memory import (
    context_mib,
    expert_cache_mib,
    page_table_mib,
    pool_mib,
    prefetch_mib,
    repacked_bytes,
)
from autofit.trial.candidate import Candidate
from autofit.trial.device import HOST_NAME, Device
from autofit.trial.measurement import ReportedMemory
from autofit.units import MIB

Estimator = Literal["runtime", "arithmetic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEstimate:
    """The memory of a candidate on one device, in MiB.

    `layers` are the first and last block of its slice, None if it has no block. `output` is true
    if it has the output layer. `host_expert_layers` is the number of layers in the slice with
    some or all experts in system RAM. `kv_mib` includes recurrent states. `other_mib` is what
    no buffer of the runtime shows; it includes `prefetch_mib` and `expert_cache_mib`.
    `usable_mib` does not contain the `headroom_mib` that is to stay free.
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
    headroom_mib: float = 0.0

    @property
    def total_mib(self) -> float:
        """Total memory."""
        return self.weights_mib + self.kv_mib + self.compute_mib + self.other_mib

    @property
    def free_mib(self) -> float:
        """Usable memory that is left; negative if the candidate does not fit."""
        return self.usable_mib - self.total_mib

    @property
    def fits(self) -> bool:
        """True if the device has enough usable memory."""
        return self.free_mib >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEstimate:
    """The memory of a candidate in system RAM, in MiB.

    With `is_mapped` the weights are pages of the file, which the system can drop. Repacked
    weights never are.
    """

    weights_mib: float
    repack_mib: float = 0.0
    kv_mib: float = 0.0
    compute_mib: float = 0.0
    is_mapped: bool = False

    @property
    def total_mib(self) -> float:
        """Total memory, mapped or not."""
        return self.weights_mib + self.repack_mib + self.kv_mib + self.compute_mib

    @property
    def resident_mib(self) -> float:
        """Memory that the system cannot drop."""
        return self.total_mib - (self.weights_mib if self.is_mapped else 0.0)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The memory of a candidate on each device, in the candidate's order, and in system RAM."""

    devices: tuple[DeviceEstimate, ...]
    host: HostEstimate
    estimator: Estimator = "arithmetic"
    is_pipelined: bool = False

    @property
    def fits(self) -> bool:
        """True if every device has enough memory."""
        return all(device.fits for device in self.devices)

    def device(self, name: str) -> DeviceEstimate:
        """Return a device by name; raises KeyError if the candidate does not use it."""
        return {device.name: device for device in self.devices}[name]


def estimate_memory(
    inventory: ModelInventory,
    candidate: Candidate,
    devices: Sequence[Device],
    *,
    is_pipelined: bool | None = None,
    outputs: int | None = None,
) -> MemoryEstimate:
    """Estimate the memory of a candidate from the model's header.

    Args:
        inventory: the model.
        candidate: its settings. An absent one has the runtime's default, except that
            `parallel` is 1.
        devices: those of the machine, in the runtime's order.
        is_pipelined: state of pipeline parallelism; None to derive it from the settings.
        outputs: rows of logits; None for one per slot, as in the server.

    Raises:
        UsageError: an invalid value, or a device or buffer that does not exist.
    """
    placement = place_tensors(inventory, candidate, devices)
    run = RunSettings.of(
        inventory, candidate, placement, is_pipelined=is_pipelined, outputs=outputs
    )
    compute = compute_buffer_bytes(inventory, placement, run)
    host = _estimate_host(candidate, placement, run, compute.get(HOST, 0))
    pinned_mib = 0.0 if host.is_mapped else host.weights_mib
    rows = []
    for index, device in enumerate(placement.devices):
        blocks = placement.blocks_on(index)
        stages = run.staging_device == index and bool(placement.host_expert_blocks)
        prefetch = prefetch_mib(inventory, candidate, placement) if stages else 0.0
        cache = expert_cache_mib(inventory, candidate, placement) if stages else 0.0
        kv = sum(run.cache_bytes[b] for b in blocks) if run.is_cache_offloaded else 0
        other = context_mib(device.name)
        if blocks or placement.output == index:
            is_widened = run.is_cache_quantized and bool(blocks)
            other += pool_mib(
                device.name,
                device.description,
                rows=run.ubatch,
                n_embd=inventory.n_embd,
                has_experts=stages or any(index in places for places in placement.experts),
                widened_elements=max(run.cache_elements[b] for b in blocks) if is_widened else 0,
            )
        rows.append(
            DeviceEstimate(
                name=device.name,
                usable_mib=device.usable_mib,
                headroom_mib=device.headroom_mib,
                layers=(blocks[0], blocks[-1]) if blocks else None,
                output=placement.output == index,
                host_expert_layers=sum(HOST in placement.experts[block] for block in blocks),
                weights_mib=placement.weights.get(index, 0) / MIB,
                kv_mib=kv / MIB,
                compute_mib=compute.get(index, 0) / MIB,
                other_mib=other + page_table_mib(device.name, pinned_mib) + prefetch + cache,
                prefetch_mib=prefetch,
                expert_cache_mib=cache,
            )
        )
    if candidate.get_str("split_mode", "layer") == "tensor" and len(rows) > 1:
        rows = _divided_rows(rows, candidate, inventory)
    return MemoryEstimate(devices=tuple(rows), host=host, is_pipelined=run.copies > 1)


def _divided_rows(
    rows: Sequence[DeviceEstimate], candidate: Candidate, inventory: ModelInventory
) -> list[DeviceEstimate]:
    """Return the rows of devices that share every layer: each has a part of its weights and cache.

    Every device computes all layers, so it needs the largest of the compute buffers.
    """
    split = read_split(candidate) or [max(row.usable_mib, 1.0) for row in rows]
    shares = [part / sum(split) for part in split[: len(rows)]]
    weights, kv = sum(row.weights_mib for row in rows), sum(row.kv_mib for row in rows)
    return [
        replace(
            row,
            layers=(0, inventory.block_count - 1),
            output=True,
            weights_mib=share * weights,
            kv_mib=share * kv,
            compute_mib=max(one.compute_mib for one in rows),
            other_mib=max(one.other_mib for one in rows),
        )
        for row, share in zip(rows, shares, strict=True)
    ]


def _estimate_host(
    candidate: Candidate, placement: Placement, run: RunSettings, compute: int
) -> HostEstimate:
    repacked = repacked_bytes(candidate, placement)
    kv = sum(
        size
        for size, place in zip(run.cache_bytes, placement.units, strict=False)
        if place == HOST or not run.is_cache_offloaded
    )
    mode = candidate.get_str("load_mode", "auto")
    return HostEstimate(
        weights_mib=(placement.weights.get(HOST, 0) - repacked) / MIB,
        repack_mib=repacked / MIB,
        kv_mib=kv / MIB,
        compute_mib=compute / MIB,
        is_mapped=mode in ("auto", "mmap") and not any(d.is_unified for d in placement.devices),
    )


def apply_reported(
    estimate: MemoryEstimate, reported: Mapping[str, ReportedMemory]
) -> MemoryEstimate:
    """Replace the buffers of an estimate with reported ones, by device name and `host`.

    Rows that are not reported stay estimated. So do repacked weights, which the runtime's planner
    does not report.
    """
    devices = tuple(
        replace(
            device,
            weights_mib=reported[device.name].model_mib,
            kv_mib=_kv_mib(device, reported[device.name].context_mib),
            compute_mib=reported[device.name].compute_mib,
        )
        if device.name in reported
        else device
        for device in estimate.devices
    )
    host = estimate.host
    if HOST_NAME in reported:
        row = reported[HOST_NAME]
        host = replace(
            host,
            weights_mib=row.model_mib,
            kv_mib=row.context_mib,
            compute_mib=row.compute_mib,
        )
    is_complete = reported.keys() >= {device.name for device in estimate.devices}
    return replace(
        estimate,
        devices=devices,
        host=host,
        estimator="runtime" if is_complete else estimate.estimator,
    )


def _kv_mib(device: DeviceEstimate, context_mib: float) -> float:
    """Return a reported context size less the expert cache, which some builds include in it."""
    has_cache = context_mib - device.kv_mib > device.expert_cache_mib / 2
    return context_mib - device.expert_cache_mib if has_cache else context_mib
