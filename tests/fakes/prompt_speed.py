"""The time of prompts: ubatch by ubatch, device by device, uploads and overlap included."""

from __future__ import annotations

from typing import Any

from fakes.allocation import uses_prefetch
from fakes.machine import Device
from fakes.placement import Share
from fakes.rates import GB, Rates

# How much of an upload hides behind computing, by prefetch slots; 3 hold one layer's experts.
_OVERLAP = {2: 0.6, 3: 0.85, 4: 0.97}
# Attention without flash attention reaches this part of the dense rate.
_PLAIN_SHARE = 0.15


class PromptSpeed(Rates):
    """Times of prompts."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._chunks: dict[int, tuple[float, ...]] = {}

    def _ubatch_loss(self, tokens: int) -> float:
        quirks = self.machine.quirks
        loss = 1.0
        if quirks.ubatch_knee and tokens > quirks.ubatch_knee:
            loss *= quirks.knee_loss
        if quirks.ubatch_grain and tokens % quirks.ubatch_grain:
            loss *= quirks.grain_loss
        return loss

    def _dense_s(self, device: Device, elements: float, nbytes: float, tokens: int) -> float:
        rate = device.prompt_tflops * 1e12 * tokens / (tokens + device.half_ubatch)
        return max(2.0 * elements * tokens / rate, nbytes / (device.memory_gb_s * GB))

    def _expert_s(self, device: Device, elements: float, nbytes: float, tokens: int) -> float:
        if not elements:
            return 0.0
        rows = tokens * self.used_share
        rate = device.prompt_tflops * device.expert_prompt_share * 1e12
        rate *= rows / (rows + device.expert_half_rows)
        touched = nbytes * self._selected(tokens)
        return max(2.0 * elements * rows / rate, touched / (device.memory_gb_s * GB))

    def _selected(self, tokens: float) -> float:
        """The part of the experts that a batch of tokens routes to."""
        return 1.0 - (1.0 - self.used_share) ** tokens if self.used_share < 1.0 else 1.0

    def _computed_s(self, place: int, tokens: int) -> float:
        device, share = self.devices[place], self.placement.shares[place]
        seconds = self._dense_s(device, share.rest_elements, share.rest_bytes, tokens)
        seconds += self._expert_s(
            device, share.expert_elements, share.expert_bytes + share.guest_bytes, tokens
        )
        output = self.model.output_bytes * self.placement.output_shares[place]
        seconds += output / (device.memory_gb_s * GB)
        seconds *= self.throttle(share)
        return seconds * self._ubatch_loss(tokens) + 2e-6 * device.layer_us * share.layers

    def _hosted_s(self, place: int, shares: tuple[Share, ...], tokens: int) -> tuple[float, float]:
        """(computing, uploading) of these shares' host weights on the device at a place."""
        device = self.devices[place]
        experts = sum(share.hosted_bytes for share in shares)
        dense = sum(share.hosted_ffn_bytes for share in shares)
        if not experts + dense:
            return 0.0, 0.0
        computing = self._expert_s(
            device, sum(s.hosted_elements for s in shares), experts, tokens
        ) + self._dense_s(device, sum(s.hosted_ffn_elements for s in shares), dense, tokens)
        is_prefetching = self._is_prefetching(tokens)
        nbytes = dense + (experts if is_prefetching else experts * self._selected(tokens))
        link = self.upload_gb_s(device)
        if is_prefetching:
            link *= self.machine.quirks.prefetch_link_share
        uploading = nbytes * self.host_factor(experts + dense) / (link * GB)
        uploading += nbytes * self.condition.missing_share / (self.machine.host.disk_gb_s * GB)
        layers = sum(share.hosted_layers for share in shares)
        guests = layers - self.placement.shares[place].hosted_layers
        states = 8.0 * tokens * self.model.n_embd * guests / (self.link_gb_s(device) * GB)
        computing *= self._ubatch_loss(tokens)
        waiting = 0.0 if is_prefetching else 1e-6 * device.readback_us * layers
        return computing + states + 2e-6 * device.layer_us * layers, uploading + waiting

    def _staged(self, place: int) -> tuple[Share, ...]:
        """Return the shares whose host weights this device computes in large batches."""
        placement = self.placement
        if self.allocation.has_pipeline:
            # Each device then uploads its own layers' experts.
            return (placement.shares[place],)
        if place != self.settings.uploader:
            return ()
        cpu = placement.cpu
        whole_layers = Share(
            hosted_layers=cpu.layers,
            hosted_bytes=cpu.expert_bytes,
            hosted_elements=cpu.expert_elements,
            hosted_ffn_bytes=cpu.rest_bytes,
            hosted_ffn_elements=cpu.rest_elements,
        )
        return (*placement.shares, whole_layers)

    def _is_prefetching(self, tokens: int) -> bool:
        return self.condition.prefetch_slots > 1 and uses_prefetch(
            self.model, self.settings, self.placement, tokens
        )

    def _on_cpu_s(self, tokens: int) -> float:
        """A batch that is not uploaded: the CPU computes what lies in host memory."""
        shares, cpu = self.placement.shares, self.placement.cpu
        experts = sum(s.hosted_bytes for s in shares) + cpu.expert_bytes
        dense = sum(s.hosted_ffn_bytes for s in shares) + cpu.rest_bytes
        work = sum(s.hosted_elements for s in shares) + cpu.expert_elements
        work = work * self.used_share + cpu.rest_elements
        work += sum(s.hosted_ffn_elements for s in shares)
        nbytes = experts * self._selected(tokens) + dense
        return self.cpu_s(nbytes, work * tokens, self.settings.threads_batch)

    def _chunk(self, tokens: int) -> tuple[float, ...]:
        """Seconds of one ubatch by device, the CPU last; attention is counted elsewhere."""
        if tokens not in self._chunks:
            self._chunks[tokens] = self._make_chunk(tokens)
        return self._chunks[tokens]

    def _make_chunk(self, tokens: int) -> tuple[float, ...]:
        settings, quirks = self.settings, self.machine.quirks
        is_large = tokens >= settings.op_offload_min_batch and settings.uploader is not None
        wide = quirks.wide_kv_ms * settings.context / 1024e3 * settings.is_kv_quantized
        stages = []
        for place in range(len(self.devices)):
            computing, uploading = self._computed_s(place, tokens), 0.0
            if is_large:
                more, uploading = self._hosted_s(place, self._staged(place), tokens)
                computing += more
            hidden = self._overlap(tokens) * min(computing, uploading)
            stages.append(computing + uploading - hidden + self.spill_s(place) + wide)
        on_cpu = 0.0 if is_large else self._on_cpu_s(tokens)
        extra = max(0, self.placement.devices_in_use - 1)
        waiting = 1e-3 * quirks.device_sync_ms * extra + self.exchange_s(tokens)
        return (*stages, on_cpu + waiting + 300e-6)

    def _overlap(self, tokens: int) -> float:
        if not self._is_prefetching(tokens):
            return 0.0
        overlap = _OVERLAP.get(self.condition.prefetch_slots, 1.0)
        return overlap if self.condition.is_pinned else 0.1 * overlap

    def _attention_s(self, tokens: int, cached: int) -> tuple[float, ...]:
        """Seconds of attention by device, the CPU last: every token looks at those before it."""
        model, settings = self.model, self.settings
        pairs = tokens * (cached + tokens / 2.0)
        local = tokens * min(model.n_swa or 0, cached + tokens / 2.0)
        per_pair = 2.0 * model.n_head * (model.head_k + model.head_v)
        seconds = []
        for device, held in zip(self.devices, self.placement.shares, strict=True):
            looks = pairs * held.full_layers + local * held.swa_layers
            share = device.flash_share if settings.flash_attn else _PLAIN_SHARE
            rate = device.prompt_tflops * share * 1e12
            has_kernel = device.has_flash_kernel or not settings.flash_attn
            if settings.kv_offload and has_kernel:
                seconds.append(per_pair * looks * self.kv_loss(device) / rate)
            else:
                cores = self.cpu_flops(settings.threads_batch)
                seconds.append(per_pair * looks / cores)
        cpu = self.placement.cpu
        looks = pairs * cpu.full_layers + local * cpu.swa_layers
        return (*seconds, per_pair * looks / self.cpu_flops(settings.threads_batch))

    def prompt_s(self, tokens: int, cached: int = 0) -> float:
        """Seconds to process a prompt of this many new tokens, from the first to the last."""
        settings = self.settings
        totals = [0.0] * (len(self.devices) + 1)
        count = 0
        for size, times in _chunks_of(tokens, settings.batch, settings.ubatch):
            for place, seconds in enumerate(self._chunk(size)):
                totals[place] += seconds * times
            count += times
        for place, seconds in enumerate(self._attention_s(tokens, cached)):
            totals[place] += seconds
        if self.is_tensor_split:
            return max(totals[:-1]) + totals[-1]
        together = min(settings.batch, tokens) / settings.ubatch
        if self.allocation.has_pipeline and together > 1.0:
            slowest, rest = max(totals[:-1]), totals[-1]
            filled = (sum(totals[:-1]) + (together - 1.0) * slowest) / together
            queue = 0.87 if settings.wide_queue else 1.0
            return filled * queue + rest
        return sum(totals)


def _chunks_of(tokens: int, batch: int, ubatch: int) -> list[tuple[int, int]]:
    """(size, how many) of the ubatches a prompt is cut into, batch by batch."""
    counts: dict[int, int] = {}
    for size, times in ((batch, tokens // batch), (tokens % batch, 1)):
        if not size or not times:
            continue
        if size >= ubatch:
            counts[ubatch] = counts.get(ubatch, 0) + times * (size // ubatch)
        if size % ubatch:
            counts[size % ubatch] = counts.get(size % ubatch, 0) + times
    return list(counts.items())
