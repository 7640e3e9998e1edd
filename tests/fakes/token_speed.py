"""The time of generated tokens: weights and cache read, the CPU's share, waiting."""

from __future__ import annotations

import math
from functools import cached_property

from fakes.allocation import MIB
from fakes.rates import GB, Rates

_SAMPLING_S = 150e-6


class TokenSpeed(Rates):
    """Times of generation."""

    @cached_property
    def _step(self) -> tuple[float, float, float]:
        """(fixed, per token of depth, cap of the sliding part) seconds of one step."""
        parts = []
        for place, device in enumerate(self.devices):
            share = self.placement.shares[place]
            memory = device.memory_gb_s * GB
            seconds = share.rest_bytes / memory
            held = (share.expert_bytes + share.guest_bytes) * self.used_share
            seconds += held / (memory * device.expert_decode_share)
            seconds += self.model.output_bytes * self.placement.output_shares[place] / memory
            fixed = seconds * self.throttle(share) + 1e-6 * device.layer_us * share.layers
            fixed += 1e-6 * device.hop_us * share.lent_layers * 2 + self.spill_s(place)
            reading = 0.8 * memory if self.settings.kv_offload else self._cpu_rate()
            cache = self.row_bytes * self.kv_loss(device) / reading
            parts.append((fixed, share.full_layers * cache, share.swa_layers * cache))
        join = max if self.is_tensor_split else math.fsum
        columns = zip(*parts, strict=True) if parts else ((0.0,),) * 3
        fixed, slope, local = (join(column) for column in columns)
        cpu = self.placement.cpu
        slope += cpu.full_layers * self.row_bytes / self._cpu_rate()
        local += cpu.swa_layers * self.row_bytes / self._cpu_rate()
        fixed += _SAMPLING_S + self._host_step_s() + self._hops_s() + self.exchange_s(1)
        return fixed, slope, local

    def _cpu_rate(self) -> float:
        return self.cpu_gb_s(self.settings.threads) * GB

    def _hops_s(self) -> float:
        used = [d for d, s in zip(self.devices, self.placement.shares, strict=True) if s.layers]
        hops = sum(1e-6 * device.hop_us for device in used[1:])
        return hops + 1e-3 * self.machine.quirks.device_token_ms * max(0, len(used) - 1)

    def _host_step_s(self) -> float:
        """Return the CPU seconds for one token, waiting included."""
        cpu, shares = self.placement.cpu, self.placement.shares
        hosted = sum(share.hosted_bytes for share in shares)
        nbytes = hosted * self.used_share + sum(share.hosted_ffn_bytes for share in shares)
        elements = sum(share.hosted_elements for share in shares) * self.used_share
        elements += sum(share.hosted_ffn_elements for share in shares)
        own = cpu.rest_bytes + cpu.expert_bytes * self.used_share
        own += 0 if self.devices and self.placement.output >= 0 else self.model.output_bytes
        work = cpu.rest_elements + cpu.expert_elements * self.used_share
        threads = self.settings.threads
        waiting = self._waiting_s()
        cache = self.allocation.cache
        if cache.layers:
            # Layers without a place in the cache are computed by the CPU as ever.
            share = cache.hosted_mib * MIB / hosted
            seconds = self._cached_s(share * nbytes)
            rest = 1.0 - share
            return seconds + self.cpu_s(rest * nbytes + own, rest * elements + work, threads)
        cached = min(nbytes, self.machine.quirks.cached_mib * MIB)
        seconds = self.cpu_s(nbytes - cached + own, elements + work, threads)
        return self._ripple(seconds) + waiting

    def _waiting_s(self) -> float:
        quirks, layers = self.machine.quirks, self.placement.hosted_layers
        waiting = sum(
            1e-6 * device.readback_us * share.hosted_layers
            for device, share in zip(self.devices, self.placement.shares, strict=True)
        )
        if quirks.graph_layers and layers > quirks.graph_layers:
            waiting += 1e-6 * quirks.graph_loss_us * layers
        return waiting

    def _ripple(self, seconds: float) -> float:
        quirks = self.machine.quirks
        if not quirks.ripple_layers:
            return seconds
        angle = 2.0 * math.pi * self.placement.hosted_layers / quirks.ripple_layers
        return seconds * (1.0 + quirks.ripple_share * math.sin(angle))

    @property
    def hit_rate(self) -> float:
        """Return the share of a token's experts that are in the cache."""
        cache = self.allocation.cache
        if not cache.layers:
            return 0.0
        return min(1.0, cache.mib / cache.hosted_mib) ** self.machine.runtime.moe_cache_locality

    def _cached_s(self, nbytes: float) -> float:
        """Host experts through a cache on the device: hits are fast, misses cross the link."""
        hits = self.hit_rate
        device = self.devices[self.settings.uploader or 0]
        missing = (1.0 - hits) * nbytes / (self.upload_gb_s(device) * GB)
        reading = hits * nbytes / (device.memory_gb_s * device.expert_decode_share * GB)
        return missing + reading + 2e-6 * device.layer_us * self.placement.hosted_layers

    def step_s(self, depth: float, streams: int = 1) -> float:
        """Seconds of one generation step with this many tokens in each stream's cache."""
        fixed, slope, local = self._step
        # A step for several streams reads weights once, more experts, and every stream's cache.
        spread = 1.0 + 0.55 * (streams - 1) if streams > 1 else 1.0
        cache = slope * depth + local * min(depth, self.model.n_swa or 0)
        return (fixed * spread + cache * streams) * self._edge_loss

    @cached_property
    def _edge_loss(self) -> float:
        quirks = self.machine.quirks
        left = min(self.condition.free_mib, default=math.inf)
        if not quirks.edge_mib or left >= quirks.edge_mib:
            return 1.0
        return 1.0 + (quirks.edge_loss - 1.0) * (1.0 - max(0.0, left) / quirks.edge_mib)

    def predicted_s(self, tokens: int, depth: int, streams: int = 1) -> float:
        """Return the seconds from the first generated token to the last."""
        steps = max(0, tokens - 1)
        return steps * self.step_s(depth + steps / 2.0, streams)
