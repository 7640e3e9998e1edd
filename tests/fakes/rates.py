"""Rates that prompts and tokens share: the CPU's, the links', and what memory costs.

All times are free of noise, in seconds. `Condition` is what memory did to the launch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fakes.allocation import MIB, Allocation, kv_row_bytes
from fakes.machine import Device, Machine
from fakes.model import Model
from fakes.placement import Placement, Share
from fakes.settings import Settings

GB = 1e9


@dataclass(frozen=True, slots=True)
class Condition:
    """The effects of memory, by index in the device list."""

    spilled_mib: tuple[float, ...]
    free_mib: tuple[float, ...]
    prefetch_slots: int
    is_pinned: bool
    missing_share: float = 0.0  # of the mapped host weights: read from disk every time


class Rates:
    """Rates of one launch."""

    def __init__(  # noqa: PLR0917  # built in one place, always by position
        self,
        model: Model,
        settings: Settings,
        placement: Placement,
        allocation: Allocation,
        machine: Machine,
        condition: Condition,
    ) -> None:
        self.model, self.settings, self.placement = model, settings, placement
        self.allocation, self.machine, self.condition = allocation, machine, condition
        self.devices = tuple(machine.devices[i] for i in settings.devices)
        self.used_share = model.n_used / model.n_expert if model.n_expert else 1.0
        self.row_bytes = kv_row_bytes(model, settings)

    def kv_loss(self, device: Device) -> float:
        """Return the slowdown of a device's attention against 16-bit values."""
        slow = self.machine.quirks.slow_kv
        kinds = (self.settings.cache_type_k, self.settings.cache_type_v)
        loss = max(slow.get(kind, 1.0) for kind in kinds)
        return loss * device.kv_loss if self.settings.is_kv_quantized else loss

    def cpu_gb_s(self, threads: int) -> float:
        """Return the memory bandwidth of this many threads."""
        host = self.machine.host
        cores, saturating, memory_gb_s = host.cores, host.saturating_cores, host.memory_gb_s
        if self._is_isolated:
            cores //= host.sockets
            saturating /= host.sockets
            memory_gb_s /= host.sockets
        elif host.sockets > 1:
            is_distributed = self.settings.numa == "distribute"
            memory_gb_s *= host.distributed_share if is_distributed else host.unplaced_share
        busy = min(threads, cores)
        full = 1.0 - math.exp(-cores / saturating)
        share = (1.0 - math.exp(-self._equal_cores(busy) / saturating)) / full
        return memory_gb_s * share * self._crowding(busy) * self._thread_share(threads)

    def cpu_flops(self, threads: int) -> float:
        """Return the operations per second of this many threads."""
        host = self.machine.host
        busy = min(threads, host.cores // (host.sockets if self._is_isolated else 1))
        return host.gflops_per_core * 1e9 * self._equal_cores(busy) * self._thread_share(threads)

    @property
    def _is_isolated(self) -> bool:
        """True if all threads run on one of several sockets."""
        return self.machine.host.sockets > 1 and self.settings.numa == "isolate"

    def _equal_cores(self, busy: int) -> float:
        """Return the performance cores that would be as fast as this many cores together."""
        host = self.machine.host
        is_waiting = busy > host.cores - host.efficiency_cores
        return busy * host.efficiency_share if is_waiting else busy

    def _crowding(self, busy: int) -> float:
        """Return the part of the bandwidth that is left if threads compete for it."""
        host = self.machine.host
        if not host.crowding_cores or busy <= host.crowding_cores:
            return 1.0
        over = (busy - host.crowding_cores) / max(1, host.cores - host.crowding_cores)
        return 1.0 + (host.crowded_share - 1.0) * over

    def _thread_share(self, threads: int) -> float:
        host = self.machine.host
        share = 1.0
        if self._is_isolated and threads > host.cores // host.sockets:
            share = 0.5  # more threads than cores of the socket
        if threads > host.cores and host.logical > host.cores:
            over = min(1.0, (threads - host.cores) / (host.logical - host.cores))
            share *= 1.0 + (host.beyond_cores_share - 1.0) * over
        elif threads > host.cores:
            share *= host.beyond_cores_share
        if host.collapse_threads and threads >= host.collapse_threads:
            share *= host.collapse_share
        return share

    def host_factor(self, nbytes: float) -> float:
        """Return the average slowdown of these host weights against local memory."""
        quirks = self.machine.quirks
        near = quirks.numa_mib * MIB
        if not near or nbytes <= near:
            return 1.0
        far = nbytes - near
        return (near + far / quirks.numa_share) / nbytes

    def link_gb_s(self, device: Device) -> float:
        """Return the speed of copies over a device's link from pinned memory."""
        if self.machine.is_unified:
            return 1e6
        link = device.link_gb_s
        if self.machine.quirks.shared_link and self.placement.devices_in_use > 1:
            link = self.devices[0].link_gb_s / (1.0 + 0.35 * (self.placement.devices_in_use - 1))
        return link

    def upload_gb_s(self, device: Device) -> float:
        """The same from where the weights lie."""
        link = self.link_gb_s(device)
        return link if self.condition.is_pinned else link * device.pageable_share

    def spill_s(self, place: int) -> float:
        """Return the seconds per pass for reading spilled memory over the link."""
        quirks = self.machine.quirks
        spilled = max(0.0, self.condition.spilled_mib[place] - quirks.free_spill_mib)
        return spilled * MIB * quirks.spill_touch / (self.link_gb_s(self.devices[place]) * GB)

    @property
    def is_tensor_split(self) -> bool:
        """True if every device computes its part of every layer, at the same time."""
        return self.settings.split_mode == "tensor" and len(self.devices) > 1

    def exchange_s(self, tokens: int) -> float:
        """Return the seconds in which the devices add up their parts of the layers' results."""
        if not self.is_tensor_split:
            return 0.0
        link = min(map(self.link_gb_s, self.devices)) * GB
        hop_s = 1e-6 * max(device.hop_us for device in self.devices)
        return 2 * self.model.n_layer * (hop_s + 4.0 * tokens * self.model.n_embd / link)

    def cpu_s(self, nbytes: float, multiplications: float, threads: int) -> float:
        """Return the CPU seconds for these bytes read and multiplications."""
        reading = nbytes * self.host_factor(nbytes) / (self.cpu_gb_s(threads) * GB)
        if self.allocation.host.is_mapped:
            reading /= self.machine.quirks.mapped_decode_share
        elif self.condition.is_pinned:
            reading /= self.machine.host.pinned_share
        reading += nbytes * self.condition.missing_share / (self.machine.host.disk_gb_s * GB)
        return max(reading, 2.0 * multiplications / self.cpu_flops(threads))

    def throttle(self, share: Share) -> float:
        """Return the slowdown of a device with this many expert layers."""
        quirks = self.machine.quirks
        is_hot = quirks.throttle_layers and share.expert_layers > quirks.throttle_layers
        return quirks.throttle_loss if is_hot else 1.0
