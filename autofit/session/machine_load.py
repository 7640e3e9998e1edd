"""How quiet the machine was while launches were measured: what belongs beside any result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from autofit.machine.cpu import Cores
from autofit.machine.host_load import STEAL_SHARE, are_cores_busy
from autofit.trial.launch_conditions import Conditions, GpuConditions
from autofit.trial.trial import Trial

# Tasks wait a little for memory and disks on any machine.
_PRESSURE_SHARE = 0.1
# A reason that shows in fewer samples is a spike.
_THROTTLED_SHARE = 0.05
# Clocks that differ by more between launches tell in the speeds.
_CLOCK_SPREAD = 0.1
# What a user chose is no disturbance.
_CHOSEN = frozenset({"application clocks"})
_WAITED_FOR = {"memory": "memory", "io": "disks"}


@dataclass(frozen=True, slots=True)
class _Seen:
    """One launch that was measured, and the machine meanwhile."""

    number: int
    conditions: Conditions


def thread_words(baseline: Trial, cores: Cores) -> str:
    """That a command without a number of threads took more than it may use; else empty.

    llama-server counts all cores of the machine, whatever affinity or a container leaves it.
    Held to 16 of 32 cores its own choice of 32 threads generated 42 tokens a second on a real
    card; on a machine of 16 cores its choice of 16 generated 84.
    """
    applied = baseline.measurement.applied if baseline.measurement else {}
    taken = applied.get("threads_taken")
    if "threads" in baseline.candidate.params or not isinstance(taken, int | float):
        return ""
    if taken <= cores.usable or not baseline.is_completed:  # one that failed was not slow
        return ""
    return (
        f"the baseline took {int(taken)} threads where {cores.usable} may be used, which costs "
        f"speed: part of any gain is --threads {cores.usable} alone"
    )


def host_report(trials: Sequence[Trial]) -> dict[str, Any] | None:
    """The conditions of all measured launches together, as JSON data; None without any.

    `words` are sentences on what may have spoilt the figures, none where the machine was
    quiet. Proofs count for nothing here: their speed is not told.
    """
    seen = [
        _Seen(trial.number, trial.measurement.conditions)
        for trial in trials
        if trial.phase != "prove" and trial.measurement and trial.measurement.conditions
    ]
    if not seen:
        return None
    words = [*_cpu_words(seen), *_gpu_words(seen)]
    return {
        "is_quiet": not words,
        "words": words,
        "launches": len(seen),
        "seconds": round(sum(one.conditions.seconds for one in seen), 1),
        "cores": seen[0].conditions.cores,
        "busy_launches": [one.number for one in seen if _is_busy(one.conditions)],
        "others_cores": _spread(seen, lambda c: c.others_cores),
        "steal_share": _spread(seen, lambda c: c.steal_share),
        "load_1m": _spread(seen, lambda c: c.load_1m),
        "cpu_mhz": _spread(seen, lambda c: c.cpu_mhz),
        "cpu_temperature_c": _most(seen, lambda c: c.cpu_temperature_c),
        "cpu_throttles": _total([one.conditions.cpu_throttles for one in seen]),
        "pressure": {
            kind: _spread(seen, lambda c, kind=kind: c.pressure.get(kind))  # type: ignore[misc]
            for kind in ("cpu", "memory", "io")
        },
        "gpus": [_gpu_facts(states) for states in _by_gpu(seen).values()],
    }


def _is_busy(conditions: Conditions) -> bool:
    """Whether others took so much that the timings mean little."""
    return _takes_cores(conditions) or (conditions.steal_share or 0.0) > STEAL_SHARE


def _takes_cores(conditions: Conditions) -> bool:
    return are_cores_busy(conditions.others_cores or 0.0, conditions.cores)


def _cpu_words(seen: Sequence[_Seen]) -> Iterator[str]:
    taken = [one for one in seen if _takes_cores(one.conditions)]
    if taken:
        most = max(one.conditions.others_cores or 0.0 for one in taken)
        yield (
            f"other processes kept up to {most:.1f} of {taken[0].conditions.cores} cores busy "
            f"in {_launches(taken, seen)}"
        )
    stolen = [one for one in seen if (one.conditions.steal_share or 0.0) > STEAL_SHARE]
    if stolen:
        most = max(one.conditions.steal_share or 0.0 for one in stolen)
        yield (
            f"the hypervisor gave up to {most:.0%} of the CPU time to others "
            f"in {_launches(stolen, seen)}"
        )
    for kind, what in _WAITED_FOR.items():
        held = [one for one in seen if one.conditions.pressure.get(kind, 0.0) > _PRESSURE_SHARE]
        if held:
            most = max(one.conditions.pressure[kind] for one in held)
            where = _launches(held, seen)
            yield f"tasks waited for {what} up to {most:.0%} of the time in {where}"
    throttles = _total([one.conditions.cpu_throttles for one in seen])
    if throttles:
        yield f"the CPU slowed itself down for heat {throttles} times"
    clocks = _spread(seen, lambda c: c.cpu_mhz)
    if clocks and clocks["low"] < (1 - _CLOCK_SPREAD) * clocks["high"]:
        yield f"the CPU ran at {clocks['low']:.0f} to {clocks['high']:.0f} MHz"


def _launches(some: Sequence[_Seen], of: Sequence[_Seen]) -> str:
    """Such as `2 of 14 launches`."""
    return f"{len(some)} of {len(of)} launches" if len(of) > 1 else "the launch"


def _gpu_words(seen: Sequence[_Seen]) -> Iterator[str]:
    for states in _by_gpu(seen).values():
        facts = _gpu_facts(states)
        held = [
            f"{reason} ({share:.0%} of the time)"
            for reason, share in facts["throttled_by"].items()
            if share >= _THROTTLED_SHARE and reason not in _CHOSEN
        ]
        clocks, most = facts["clock_mhz"], facts["max_clock_mhz"]
        ran = f"{clocks['low']:.0f} to {clocks['high']:.0f}" if clocks else ""
        ran += f" of {most} MHz" if most else " MHz"
        warm = "" if facts["temperature_c"] is None else f", up to {facts['temperature_c']} °C"
        name = f"{facts['name']} ({facts['pci_id']})"
        if held:
            at = f" and ran at {ran}" if clocks else ""
            yield f"{name} was slowed down by {' and '.join(held)}{at}{warm}"
        elif clocks and clocks["low"] < (1 - _CLOCK_SPREAD) * clocks["high"]:
            yield f"{name} ran at {ran}{warm}"


def _by_gpu(seen: Sequence[_Seen]) -> Mapping[tuple[str, str], list[GpuConditions]]:
    found: dict[tuple[str, str], list[GpuConditions]] = {}
    for one in seen:
        for gpu in one.conditions.gpus:
            found.setdefault((gpu.name, gpu.pci_id), []).append(gpu)
    return found


def _gpu_facts(states: Sequence[GpuConditions]) -> dict[str, Any]:
    """One GPU over all launches; shares of reasons are means."""
    clocks = [state.clock_mhz for state in states if state.clock_mhz is not None]
    degrees = [state.temperature_c for state in states if state.temperature_c is not None]
    powers = [state.power_w for state in states if state.power_w is not None]
    reasons = dict.fromkeys(reason for state in states for reason in state.throttled_by)
    return {
        "name": states[0].name,
        "pci_id": states[0].pci_id,
        "clock_mhz": _low_to_high(clocks),
        "max_clock_mhz": states[0].max_clock_mhz,
        "temperature_c": max(degrees, default=None),
        "power_w": max(powers, default=None),
        "throttled_by": {
            reason: round(sum(s.throttled_by.get(reason, 0.0) for s in states) / len(states), 3)
            for reason in reasons
        },
    }


def _spread(
    seen: Sequence[_Seen], value: Callable[[Conditions], float | None]
) -> dict[str, float] | None:
    told = [found for one in seen if (found := value(one.conditions)) is not None]
    return _low_to_high(told)


def _low_to_high(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"low": min(values), "median": round(median(values), 4), "high": max(values)}


def _most(seen: Sequence[_Seen], value: Callable[[Conditions], float | None]) -> float | None:
    told = [found for one in seen if (found := value(one.conditions)) is not None]
    return max(told, default=None)


def _total(counts: Sequence[int | None]) -> int | None:
    told = [count for count in counts if count is not None]
    return sum(told) if told else None
