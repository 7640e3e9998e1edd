"""The measurement of a launch: raw samples, memory over time, conditions, applied settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request.

    Attributes:
        predicted_s: the time of `predicted_tokens - 1` steps: the first token comes with the
            prompt.
        depth: the number of tokens in the cache when generation began.
        request: the index in the workload's requests.
        order: the number of the request in its launch, from 0.
        is_warmup: the sample is kept, but no metric uses it.
    """

    prompt_tokens: int
    prompt_s: float
    ttft_s: float
    predicted_tokens: int
    predicted_s: float
    cached_tokens: int = 0
    depth: int = 0
    request: int = 0
    order: int = 0
    is_warmup: bool = False

    @property
    def pp_per_s(self) -> float | None:
        """Prompt tokens per second, or None if nothing was processed."""
        if self.prompt_tokens <= 0 or self.prompt_s <= 0:
            return None
        return self.prompt_tokens / self.prompt_s

    @property
    def tg_per_s(self) -> float | None:
        """Generated tokens per second, or None if fewer than two were generated."""
        steps = self.predicted_tokens - 1
        return steps / self.predicted_s if steps > 0 and self.predicted_s > 0 else None

    @property
    def total_s(self) -> float:
        """Seconds from sending the request to its last token."""
        return self.ttft_s + self.predicted_s


@dataclass(frozen=True, slots=True)
class ReportedMemory:
    """One row of the runtime's own memory table, in MiB; a field is None if the log lacks it.

    `context_mib` includes a cache of experts; `expert_cache_mib` is that part of it.
    """

    model_mib: float
    context_mib: float
    compute_mib: float
    free_mib: float | None = None
    unaccounted_mib: float | None = None
    total_mib: float | None = None
    expert_cache_mib: float = 0.0

    @property
    def buffers_mib(self) -> float:
        """The MiB that the runtime has allocated itself."""
        return self.model_mib + self.context_mib + self.compute_mib


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory at one moment, in MiB by device name; a value is None if its counter is missing.

    `process_mib` is the resident memory of the server and its child processes;
    `process_file_mib` is the part of it that is mapped from files and can be read again.
    """

    at_s: float
    device_used_mib: Mapping[str, float | None]
    device_free_mib: Mapping[str, float | None]
    process_mib: float | None = None
    host_available_mib: float | None = None
    major_faults: int | None = None
    process_file_mib: float | None = None
    process_swapped_mib: float | None = None


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """One GPU while requests were processed; a field is None if the GPU does not report it.

    `clock_mhz` is the median of all samples, `low_clock_mhz` the least, `temperature_c` and
    `power_w` the most. `throttled_by` has the share of samples by reason.
    """

    name: str
    pci_id: str
    clock_mhz: float | None = None
    low_clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttled_by: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The machine while requests were processed; a field is None if it is not reported.

    Attributes:
        others_cores: the cores, of `cores`, that other processes kept busy.
        steal_share: the share of the CPU time that a hypervisor gave to other machines.
        cpu_mhz: the median of all samples, `low_cpu_mhz` the least.
        cpu_temperature_c: the highest of all samples.
        cpu_throttles: the number of times that the processor throttled itself for heat.
        pressure: the share of time in which some task, ours included, waited for `cpu`,
            `memory` or `io`.
    """

    seconds: float
    cores: int
    others_cores: float | None = None
    steal_share: float | None = None
    load_1m: float | None = None
    cpu_mhz: float | None = None
    low_cpu_mhz: float | None = None
    cpu_temperature_c: float | None = None
    cpu_throttles: int | None = None
    pressure: Mapping[str, float] = field(default_factory=dict)
    gpus: tuple[GpuConditions, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Conditions:
        """Return the conditions from the data of `dataclasses.asdict`.

        Raises:
            TypeError: a field is missing or not known.
        """
        return cls(**{**data, "gpus": tuple(GpuConditions(**g) for g in data.get("gpus", ()))})


@dataclass(frozen=True, slots=True)
class Measurement:
    """All samples of a trial, with the memory and the state of the machine meanwhile.

    Attributes:
        peak_mib: the most used memory by device name; `host` is the server's own memory.
        free_mib: the free memory at that peak; None for a missing counter.
        applied: settings as the runtime reports them, by parameter name.
        conditions: None if no request was processed.
    """

    samples: tuple[Sample, ...] = ()
    load_s: float | None = None
    peak_mib: Mapping[str, float | None] = field(default_factory=dict)
    free_mib: Mapping[str, float | None] = field(default_factory=dict)
    applied: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    reported: Mapping[str, ReportedMemory] = field(default_factory=dict)
    readings: tuple[MemoryReading, ...] = ()
    conditions: Conditions | None = None

    def taken_mib(self) -> dict[str, float | None]:
        """Return the server's own peak memory on each device, or None if it is unknown.

        What was used before the launch is subtracted. The result is never less than the
        server's own buffers: the process of a remote device keeps the memory of earlier
        launches, so that a later one seems to use none.
        """
        before = self.readings[0].device_used_mib if self.readings else {}
        taken: dict[str, float | None] = {}
        for name, peak in self.peak_mib.items():
            held = 0.0 if name == "host" else before.get(name)
            own = self.reported.get(name)
            least = own.buffers_mib if own else 0.0
            taken[name] = None if peak is None or held is None else max(least, peak - held)
        return taken

    def to_dict(self) -> dict[str, Any]:
        """Return the measurement as JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """Return the measurement from the data of `to_dict`.

        Raises:
            TypeError: a field is missing or not known.
        """
        fields = dict(data)
        return cls(
            **{
                **fields,
                "samples": tuple(Sample(**s) for s in fields.get("samples", ())),
                "reported": {
                    name: ReportedMemory(**row) for name, row in fields.get("reported", {}).items()
                },
                "readings": tuple(MemoryReading(**r) for r in fields.get("readings", ())),
                "conditions": Conditions.from_dict(fields["conditions"])
                if fields.get("conditions")
                else None,
            }
        )


def extremes(
    launches: Iterable[Mapping[str, float | None]], choose: Callable[[list[float]], float]
) -> dict[str, float | None]:
    """Return the extreme value of each device over all launches, or None if it has no value."""
    readings: dict[str, list[float]] = {}
    for by_device in launches:
        for device, mib in by_device.items():
            known = readings.setdefault(device, [])
            if mib is not None:
                known.append(mib)
    return {device: choose(known) if known else None for device, known in readings.items()}
