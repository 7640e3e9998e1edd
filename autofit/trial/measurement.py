"""What one launch measured: raw samples, memory, and what was really applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from autofit.trial.launch_conditions import Conditions


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request.

    `predicted_s` covers `predicted_tokens - 1` steps: the first token comes with the prompt.
    `depth` is the number of tokens in the cache when generation began. `request` is the
    index in the workload's requests; `order` counts the requests of this launch from 0, so
    that first and later requests can be told apart; a warm-up is kept but not counted.
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
        """Prompt tokens per second, None when it cannot be told."""
        if self.prompt_tokens <= 0 or self.prompt_s <= 0:
            return None
        return self.prompt_tokens / self.prompt_s

    @property
    def tg_per_s(self) -> float | None:
        """Generated tokens per second, None when fewer than two were generated."""
        steps = self.predicted_tokens - 1
        return steps / self.predicted_s if steps > 0 and self.predicted_s > 0 else None

    @property
    def total_s(self) -> float:
        """Seconds from sending the request to its last token."""
        return self.ttft_s + self.predicted_s


@dataclass(frozen=True, slots=True)
class ReportedMemory:
    """One row of the runtime's own memory table, in MiB; None where it is not told.

    `context_mib` counts a cache of experts, too, `expert_cache_mib` is that part of it.
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
        """What the runtime has allocated itself."""
        return self.model_mib + self.context_mib + self.compute_mib


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory at one moment, MiB by device name; a counter that is missing is None.

    `process_mib` is all that the server and its offspring have resident, `process_file_mib`
    the part of it that is mapped from files and can be read again.
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
class Measurement:
    """All samples of a trial and what was seen around them.

    `peak_mib` and `free_mib` (at the peak) are by device name, with `host` for this
    process's own memory and what the host had left; None where there is no counter.
    `applied` are settings as the runtime reports them, by parameter name; `conditions` tell
    of the machine while requests were processed, None where none were.
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
        """By device what the server itself held at the peak, without what others held before.

        None where nothing tells it. It is never less than the server's own buffers: a remote
        device's process keeps what launches before it have taken, and seems to take no more.
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
        """The measurement as JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """The inverse of `to_dict`.

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
    told: Iterable[Mapping[str, float | None]], choose: Callable[[list[float]], float]
) -> dict[str, float | None]:
    """By device the most or least of all launches; None where none was counted."""
    readings: dict[str, list[float]] = {}
    for by_device in told:
        for device, mib in by_device.items():
            known = readings.setdefault(device, [])
            if mib is not None:
                known.append(mib)
    return {device: choose(known) if known else None for device, known in readings.items()}
