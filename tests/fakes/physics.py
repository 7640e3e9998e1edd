"""The simulated machine in one object: launch settings on it, or ask for the noise-free truth.

    simulation = Simulation(machine, model, seed=1)
    run = simulation.launch({"n_cpu_moe": 20, "ubatch": 2048}, [(8192, 256)])
    run.failure is None and run.samples[0].pp_per_s
    simulation.truth({"n_cpu_moe": 20, "ubatch": 2048}, [(8192, 256)])

Parameters carry autofit's names, requests are pairs of prompt and predicted tokens or
objects with those attributes. The n-th launch of one seed always answers the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fakes import own_fit
from fakes.launch import Failure, Launch, StoppedError
from fakes.ledger import Ledger
from fakes.machine import Machine
from fakes.model import Model
from fakes.scatter import Scatter
from fakes.settings import Params, RefusedError

_STOP_S = 0.6
_REFUSED_S = 0.3


@dataclass(frozen=True, slots=True)
class SimulatedSample:
    """One answered request; fields as in autofit.trial.measurement.Sample."""

    prompt_tokens: int
    prompt_s: float
    ttft_s: float
    predicted_tokens: int
    predicted_s: float
    depth: int
    request: int
    order: int

    @property
    def pp_per_s(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prompt_s

    @property
    def tg_per_s(self) -> float | None:
        """Generated tokens per second, None for fewer than two."""
        steps = self.predicted_tokens - 1
        return steps / self.predicted_s if steps > 0 else None

    @property
    def total_s(self) -> float:
        """Seconds of the whole request."""
        return self.ttft_s + self.predicted_s


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Memory of one device at the end of a launch, in MiB; `used_mib` is this process's."""

    name: str
    used_mib: float
    free_mib: float
    spilled_mib: float
    weights_mib: float
    kv_mib: float
    compute_mib: float
    pool_mib: float
    cache_mib: float


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a launch; `seconds` is its time from start to stop."""

    failure: Failure | None
    samples: tuple[SimulatedSample, ...] = ()
    load_s: float = 0.0
    seconds: float = 0.0
    devices: tuple[DeviceUse, ...] = ()
    host_used_mib: float = 0.0
    host_free_mib: float = 0.0
    has_pipeline: bool = False
    hosted_layers: int = 0
    params: Params = field(default_factory=dict)
    refused_slot_mib: float = 0.0

    @property
    def is_completed(self) -> bool:
        """True if every request was answered."""
        return self.failure is None

    @property
    def spilled_mib(self) -> float:
        """Spilled memory in MiB, all devices together."""
        return sum(device.spilled_mib for device in self.devices)

    @property
    def request_s(self) -> float:
        """The mean time of a request."""
        return sum(sample.total_s for sample in self.samples) / len(self.samples)


def _requests(requests: Iterable[Any]) -> tuple[tuple[int, int], ...]:
    return tuple(
        (int(r[0]), int(r[1]))
        if isinstance(r, tuple | list)
        else (int(r.prompt_tokens), int(r.predicted_tokens))
        for r in requests
    )


class Simulation:
    """A machine that holds a model; counts its launches."""

    def __init__(self, machine: Machine, model: Model, seed: int = 0) -> None:
        self.machine, self.model, self.seed = machine, model, seed
        self.launches = 0
        self._known: dict[Any, Run] = {}

    def with_seed(self, seed: int) -> Simulation:
        """The same machine and model under other noise; what is known of the truth is shared."""
        other = Simulation(self.machine, self.model, seed)
        other._known = self._known
        return other

    def truth(self, params: Params, requests: Sequence[Any], *, fit: bool = False) -> Run:
        """Return the launch without noise: steady requests, other programs as at first.

        With `fit` the runtime's own fit fills in what the parameters leave open.
        """
        return self._truth(params, _requests(requests), fit=fit, floor=0.0)

    def fits(self, params: Params, requests: Sequence[Any]) -> bool:
        """Return whether all requests are answered and nothing spills."""
        run = self.truth(params, requests)
        return run.is_completed and run.spilled_mib == 0

    def launch(
        self,
        params: Params,
        requests: Sequence[Any],
        *,
        fit: bool = False,
        streams: int = 1,
    ) -> Run:
        """Launch once, with the noise of this launch; requests run in the order given."""
        self.launches += 1
        drift = self.machine.floor_drift_mib * (self.launches - 1)
        floor = min(drift, self.machine.floor_drift_limit_mib)
        run = self._truth(params, _requests(requests), fit=fit, floor=floor, streams=streams)
        return self._scatter(run)

    def fitted(self, params: Params) -> dict[str, Any]:
        """The parameters after the runtime's own fit."""
        memory = Ledger(self.machine)
        free = [memory.free_mib(i) for i in range(len(self.machine.devices))]
        return own_fit.fit(params, self.machine, self.model, free).params

    def _truth(
        self,
        params: Params,
        requests: tuple[tuple[int, int], ...],
        *,
        fit: bool,
        floor: float,
        streams: int = 1,
    ) -> Run:
        key = (tuple(sorted(params.items())), requests, fit, floor, streams)
        if key not in self._known:
            self._known[key] = self._run(params, requests, fit=fit, floor=floor, streams=streams)
        return self._known[key]

    def _run(
        self,
        params: Params,
        requests: tuple[tuple[int, int], ...],
        *,
        fit: bool,
        floor: float,
        streams: int,
    ) -> Run:
        machine = self.machine
        memory = Ledger(machine, tuple(d.other_mib + floor for d in machine.devices))
        if fit:
            free = [memory.free_mib(i) for i in range(len(machine.devices))]
            params = own_fit.fit(params, machine, self.model, free).params
        try:
            launch = Launch(machine, self.model, params, memory)
        except RefusedError as error:
            failure = Failure("rejected", "plan", reason=str(error))
            return Run(failure, seconds=_REFUSED_S, params=params)
        samples: list[SimulatedSample] = []
        failure = None
        seconds = 0.4
        try:
            launch.load()
            seconds = launch.load_s()
            for order, (prompt, predicted) in enumerate(requests):
                samples.append(_sample(launch, order, prompt, predicted, streams))
        except StoppedError as stopped:
            failure = stopped.failure
            seconds = 0.5 if failure.stage == "load" else launch.load_s()
        seconds += sum(sample.total_s for sample in samples) + _STOP_S
        return Run(
            failure=failure,
            samples=tuple(samples),
            load_s=launch.load_s(),
            seconds=seconds,
            devices=_device_use(launch, memory),
            host_used_mib=memory.host_used_mib,
            host_free_mib=memory.host_free_mib(),
            has_pipeline=launch.allocation.has_pipeline,
            hosted_layers=launch.placement.hosted_layers,
            params=params,
            refused_slot_mib=launch.refused_slot_mib,
        )

    def _scatter(self, run: Run) -> Run:
        if not run.samples:
            return run
        tightest = min((d.free_mib for d in run.devices), default=1e9)
        scatter = Scatter(
            self.machine, self.seed, self.launches, repr(sorted(run.params.items())), tightest
        )
        samples = tuple(
            replace(
                sample,
                prompt_s=(prompt := scatter.prompt_s(sample.prompt_s, sample.order)),
                ttft_s=prompt + sample.ttft_s - sample.prompt_s,
                predicted_s=scatter.predicted_s(sample.predicted_s),
            )
            for sample in run.samples
        )
        more = sum(s.total_s for s in samples) - sum(s.total_s for s in run.samples)
        return replace(run, samples=samples, seconds=run.seconds + more)


def _sample(
    launch: Launch, order: int, prompt: int, predicted: int, streams: int
) -> SimulatedSample:
    prompt_s = launch.process_prompt(prompt)
    predicted_s = launch.generate(predicted, prompt, streams)
    return SimulatedSample(
        prompt_tokens=prompt,
        prompt_s=prompt_s,
        ttft_s=prompt_s + 0.002,
        predicted_tokens=predicted,
        predicted_s=predicted_s,
        depth=prompt,
        request=order,
        order=order,
    )


def _device_use(launch: Launch, memory: Ledger) -> tuple[DeviceUse, ...]:
    uses = []
    for at, index in enumerate(launch.settings.devices):
        buffers = launch.allocation.devices[at]
        slots = launch.slots_mib if at == 0 else 0.0
        uses.append(
            DeviceUse(
                name=launch.machine.devices[index].name,
                used_mib=memory.used_mib[index],
                free_mib=memory.free_mib(index),
                spilled_mib=memory.spilled_mib[index],
                weights_mib=buffers.weights_mib,
                kv_mib=buffers.kv_mib + buffers.recurrent_mib,
                compute_mib=buffers.compute_mib,
                pool_mib=launch.pools_mib[at] + slots,
                cache_mib=buffers.cache_mib,
            )
        )
    return tuple(uses)
