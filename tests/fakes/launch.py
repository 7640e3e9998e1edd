"""One launch of the simulated runtime, step by step: what it allocates, how fast it then is.

`physics.Simulation` runs it in-process, the fake server runs it against memory that several
processes share; the steps are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from fakes.allocation import Allocation, allocate, pool_mib, slot_mib, uses_prefetch
from fakes.ledger import FullError
from fakes.machine import Machine
from fakes.model import Model
from fakes.placement import Placement, place
from fakes.rates import Condition
from fakes.settings import Params, Settings, make_settings
from fakes.speed import Speed

Buffer = Literal["context", "weights", "kv", "recurrent", "compute", "cache", "pool", "output"]
Stage = Literal["load", "context", "prompt", "generate"]


class Memory(Protocol):
    """The source of memory; see `ledger.Ledger`. Devices are indices in the machine's list."""

    @property
    def spilled_mib(self) -> list[float]:
        """Spilled memory in MiB, by device."""
        ...

    def free_mib(self, index: int) -> float:
        """Return the free memory of a device."""
        ...

    def host_free_mib(self) -> float:
        """Return the free memory of the host."""
        ...

    def take(self, index: int, mib: float) -> None:
        """Take device memory; `FullError` where there is none."""
        ...

    def take_host(self, mib: float) -> None:
        """Take host memory; `FullError` where there is none."""
        ...

    def give(self, index: int, mib: float) -> None:
        """Give device memory back."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One allocation; `place` is the place in the settings' device list, None for the host."""

    stage: Stage
    buffer: Buffer
    place: int | None
    mib: float
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a launch ended: an allocation that was refused, or a refused combination."""

    kind: Literal["out_of_memory", "rejected"]
    stage: str
    where: Literal["device", "host", "pinned"] | None = None
    buffer: str | None = None
    device: str | None = None
    requested_mib: float | None = None
    is_killed: bool = False
    reason: str = ""


class StoppedError(Exception):
    """The launch ends here."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Launch:
    """A process of the runtime with its settings."""

    def __init__(
        self,
        machine: Machine,
        model: Model,
        params: Params,
        memory: Memory,
        settings: Settings | None = None,
    ) -> None:
        self.machine, self.model, self.memory = machine, model, memory
        self.settings: Settings = settings or make_settings(params, machine, model)
        free = [memory.free_mib(i) for i in range(len(machine.devices))]
        self.placement: Placement = place(model, self.settings, machine, free)
        self.allocation: Allocation = allocate(model, self.settings, self.placement, machine)
        count = len(self.settings.devices)
        self.pools_mib = [0.0] * count
        self.largest_batch = 0
        self.slots_mib = 0.0
        self.prefetch_slots = 0
        self.refused_slot_mib = 0.0
        self.generated_tokens = 0
        self.is_pinned = self.allocation.host.is_pinned
        self.missing_share = 0.0
        self.lost_pipeline = False
        self._is_retrying = False
        self._taken_compute: list[tuple[int, float]] = []
        self._speed: tuple[Condition, Speed] | None = None

    # ---- memory

    def load_steps(self) -> Iterator[Step]:
        """Yield the allocations until the server is ready, in the runtime's order."""
        devices, host = self.allocation.devices, self.allocation.host
        for at, buffers in enumerate(devices):
            yield Step("load", "context", at, buffers.context_mib)
        for at, buffers in enumerate(devices):
            yield Step("load", "weights", at, buffers.weights_mib)
        weights = host.repack_mib + (0.0 if host.is_mapped else host.weights_mib)
        yield Step("load", "weights", None, weights, is_pinned=host.is_pinned)
        yield Step("context", "output", None, host.output_mib + 250.0)
        for at, buffers in enumerate(devices):
            yield Step("context", "kv", at, buffers.kv_mib)
        yield Step("context", "kv", None, host.kv_mib)
        for at, buffers in enumerate(devices):
            yield Step("context", "recurrent", at, buffers.recurrent_mib)
        for at, buffers in enumerate(devices):
            yield Step("context", "cache", at, buffers.cache_mib)
        while True:
            self._taken_compute = []
            for at, buffers in enumerate(self.allocation.devices):
                yield Step("context", "compute", at, buffers.compute_mib)
                if self._is_retrying:
                    break
            if not self._is_retrying:
                break
            self._is_retrying = False
        yield Step("context", "compute", None, host.compute_mib)

    def take(self, step: Step) -> None:
        """Make one allocation.

        Raises:
            StoppedError: it was refused.
        """
        if step.mib <= 0:
            return
        try:
            if step.place is None:
                self.memory.take_host(step.mib)
            else:
                self.memory.take(self.settings.devices[step.place], step.mib)
        except FullError as full:
            if step.buffer == "compute" and step.place is not None and self._drops_pipeline():
                return
            raise StoppedError(self._failure(step, full)) from full
        if step.buffer == "compute" and step.place is not None:
            self._taken_compute.append((self.settings.devices[step.place], step.mib))

    def _drops_pipeline(self) -> bool:
        """Go on without pipeline parallelism, if it was on."""
        if not self.allocation.has_pipeline:
            return False
        for index, mib in self._taken_compute:
            self.memory.give(index, mib)
        self.allocation = allocate(
            self.model, self.settings, self.placement, self.machine, may_pipeline=False
        )
        self.lost_pipeline = self._is_retrying = True
        return True

    def _failure(self, step: Step, full: FullError) -> Failure:
        device = None
        if step.place is not None:
            device = self.machine.devices[self.settings.devices[step.place]].name
        is_host = full.how != "device"
        return Failure(
            kind="out_of_memory",
            stage=step.stage,
            where=("pinned" if step.is_pinned else "host") if is_host else "device",
            buffer="kv" if step.buffer == "cache" else step.buffer,
            device=None if is_host else device,
            requested_mib=step.mib,
            is_killed=full.how == "killed",
        )

    def load(self) -> None:
        """Make all allocations of `load_steps`.

        Raises:
            StoppedError: one was refused.
        """
        for step in self.load_steps():
            self.take(step)
        self.settle()

    def settle(self) -> None:
        """See how much of the mapped weights the page cache cannot hold."""
        host = self.allocation.host
        if host.is_mapped and host.weights_mib:
            lacking = host.weights_mib - max(0.0, self.memory.host_free_mib())
            self.missing_share = min(1.0, max(0.0, lacking / host.weights_mib))

    def grow_pools(self, tokens: int, depth: int, stage: Stage = "prompt") -> None:
        """Grow run-time pools for a ubatch of this many tokens that ends at this depth.

        Raises:
            StoppedError: the memory for it is not there.
        """
        for at, index in enumerate(self.settings.devices):
            device = self.machine.devices[index]
            needed_mib = pool_mib(
                self.model,
                self.settings,
                self.placement,
                device,
                place=at,
                tokens=tokens,
                depth=depth,
            )
            more = needed_mib - self.pools_mib[at]
            if more > 0:
                self.take(Step(stage, "pool", at, more))
                self.pools_mib[at] = needed_mib
        self._grow_slots(tokens)

    def _grow_slots(self, tokens: int) -> None:
        """Allocate prefetch slots once; where they do not fit, fewer, and none below two.

        Raises:
            StoppedError: they do not fit, and this build does not go on with fewer.
        """
        if self.slots_mib or self.refused_slot_mib:
            return
        if not uses_prefetch(self.model, self.settings, self.placement, tokens):
            return
        size = slot_mib(self.placement)
        index = self.settings.devices[self.settings.uploader or 0]
        taken = 0
        for _ in range(self.settings.prefetch_slots):
            try:
                self.memory.take(index, size)
            except FullError:
                self.refused_slot_mib = size
                break
            taken += 1
        if self.refused_slot_mib and self.machine.runtime.prefetch_dies:
            name = self.machine.devices[index].name
            raise StoppedError(
                Failure("out_of_memory", "prompt", "device", "pool", name, size, reason="slot")
            )
        if taken == 1:
            self.memory.give(index, size)
            taken = 0
        self.slots_mib = taken * size
        self.prefetch_slots = taken

    # ---- speed

    @property
    def condition(self) -> Condition:
        """The effects of memory on the launch so far."""
        memory, indices = self.memory, self.settings.devices
        spilled = memory.spilled_mib
        return Condition(
            spilled_mib=tuple(spilled[i] for i in indices),
            free_mib=tuple(memory.free_mib(i) for i in indices),
            prefetch_slots=self.prefetch_slots,
            is_pinned=self.is_pinned,
            missing_share=self.missing_share,
        )

    @property
    def speed(self) -> Speed:
        """Times under the present condition."""
        condition = self.condition
        if self._speed is None or self._speed[0] != condition:
            made = Speed(
                self.model, self.settings, self.placement, self.allocation, self.machine, condition
            )
            self._speed = (condition, made)
        return self._speed[1]

    def process_prompt(self, tokens: int, cached: int = 0) -> float:
        """Process a prompt; seconds.

        Raises:
            StoppedError: run-time pools did not fit.
        """
        largest = min(self.settings.ubatch, self.settings.batch, tokens)
        self.largest_batch = max(self.largest_batch, largest)
        self.grow_pools(self.largest_batch, cached + tokens)
        return self.speed.prompt_s(tokens, cached)

    def generate(self, tokens: int, depth: int, streams: int = 1) -> float:
        """Generate tokens; seconds from the first to the last.

        Raises:
            StoppedError: run-time pools did not fit as the cache filled.
        """
        self.grow_pools(self.largest_batch, depth + tokens, stage="generate")
        self.generated_tokens += tokens
        return self.speed.predicted_s(tokens, depth, streams)

    def load_s(self) -> float:
        """Seconds from start to ready."""
        host, gigabytes = self.machine.host, self.model.total_bytes / 1e9
        on_host = (
            (self.allocation.host.weights_mib + self.allocation.host.repack_mib)
            * 1024
            * 1024
            / 1e9
        )
        copied = gigabytes - on_host if self.settings.is_mapped else gigabytes
        seconds = 0.5 + copied / host.unpack_gb_s + self.missing_share * on_host / host.disk_gb_s
        return seconds + 0.15 * len(self.settings.devices)
