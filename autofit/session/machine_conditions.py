"""The conditions of the machine during all measured launches, and the disturbances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from autofit.machine.host_load import STEAL_SHARE, are_cores_busy
from autofit.trial.measurement import Conditions, GpuConditions
from autofit.trial.trial import Trial

# On any machine tasks wait a little for memory and disks.
_PRESSURE_SHARE = 0.1
# A reason in a smaller share of the samples is a spike.
_THROTTLED_SHARE = 0.05
# A larger difference of clocks between launches changes their speeds visibly.
_CLOCK_SPREAD = 0.1
# A limit that the user has set is no disturbance.
_CHOSEN = frozenset({"application clocks"})
_WAITED_FOR = {"memory": "memory", "io": "disks"}


def describe_conditions(trials: Sequence[Trial]) -> dict[str, Any] | None:
    """Return the conditions of all measured launches as JSON data, or None without a launch.

    `words` has a sentence for each possible disturbance; it is empty if the machine was idle.
    Proofs are left out, because their speed is not used.
    """
    measured = {
        trial.number: trial.measurement.conditions
        for trial in trials
        if trial.phase != "prove" and trial.measurement and trial.measurement.conditions
    }
    every = list(measured.values())
    if not every:
        return None
    sentences = [*_cpu_sentences(every), *_gpu_sentences(every)]
    return {
        "is_quiet": not sentences,
        "words": sentences,
        "launches": len(every),
        "seconds": round(sum(one.seconds for one in every), 1),
        "cores": every[0].cores,
        "busy_launches": [number for number, one in measured.items() if _is_busy(one)],
        "others_cores": _spread(every, lambda c: c.others_cores),
        "steal_share": _spread(every, lambda c: c.steal_share),
        "load_1m": _spread(every, lambda c: c.load_1m),
        "cpu_mhz": _spread(every, lambda c: c.cpu_mhz),
        "cpu_temperature_c": max(_known(every, lambda c: c.cpu_temperature_c), default=None),
        "cpu_throttles": _count_throttles(every),
        "pressure": {
            kind: _spread(every, lambda c, kind=kind: c.pressure.get(kind))  # type: ignore[misc]
            for kind in ("cpu", "memory", "io")
        },
        "gpus": [_gpu_facts(states) for states in _by_gpu(every).values()],
    }


def _is_busy(conditions: Conditions) -> bool:
    """Return whether other programs used so much of the CPU that timings are unreliable."""
    return _has_busy_cores(conditions) or (conditions.steal_share or 0.0) > STEAL_SHARE


def _has_busy_cores(conditions: Conditions) -> bool:
    return are_cores_busy(conditions.others_cores or 0.0, conditions.cores)


def _cpu_sentences(every: Sequence[Conditions]) -> Iterator[str]:
    busy = [one for one in every if _has_busy_cores(one)]
    if busy:
        most = max(one.others_cores or 0.0 for one in busy)
        yield (
            f"other processes kept up to {most:.1f} of {busy[0].cores} cores busy "
            f"in {_launches(busy, every)}"
        )
    stolen = [one for one in every if (one.steal_share or 0.0) > STEAL_SHARE]
    if stolen:
        most = max(one.steal_share or 0.0 for one in stolen)
        yield (
            f"the hypervisor gave up to {most:.0%} of the CPU time to others "
            f"in {_launches(stolen, every)}"
        )
    for kind, resource in _WAITED_FOR.items():
        waited = [one for one in every if one.pressure.get(kind, 0.0) > _PRESSURE_SHARE]
        if waited:
            most = max(one.pressure[kind] for one in waited)
            launches = _launches(waited, every)
            yield f"tasks waited for {resource} up to {most:.0%} of the time in {launches}"
    throttles = _count_throttles(every)
    if throttles:
        yield f"the CPU throttled itself for heat {throttles} times"
    clocks = _spread(every, lambda c: c.cpu_mhz)
    if clocks and clocks["low"] < (1 - _CLOCK_SPREAD) * clocks["high"]:
        yield f"the CPU ran at {clocks['low']:.0f} to {clocks['high']:.0f} MHz"


def _launches(some: Sequence[Conditions], every: Sequence[Conditions]) -> str:
    """Return a count such as `2 of 14 launches`."""
    return f"{len(some)} of {len(every)} launches" if len(every) > 1 else "the launch"


def _gpu_sentences(every: Sequence[Conditions]) -> Iterator[str]:
    for states in _by_gpu(every).values():
        facts = _gpu_facts(states)
        reasons = [
            f"{reason} ({share:.0%} of the time)"
            for reason, share in facts["throttled_by"].items()
            if share >= _THROTTLED_SHARE and reason not in _CHOSEN
        ]
        clocks, most = facts["clock_mhz"], facts["max_clock_mhz"]
        ran = f"{clocks['low']:.0f} to {clocks['high']:.0f}" if clocks else ""
        ran += f" of {most} MHz" if most else " MHz"
        warm = "" if facts["temperature_c"] is None else f", up to {facts['temperature_c']} °C"
        name = f"{facts['name']} ({facts['pci_id']})"
        if reasons:
            at = f" and ran at {ran}" if clocks else ""
            yield f"{name} was slowed down by {' and '.join(reasons)}{at}{warm}"
        elif clocks and clocks["low"] < (1 - _CLOCK_SPREAD) * clocks["high"]:
            yield f"{name} ran at {ran}{warm}"


def _by_gpu(every: Sequence[Conditions]) -> Mapping[tuple[str, str], list[GpuConditions]]:
    found: dict[tuple[str, str], list[GpuConditions]] = {}
    for one in every:
        for gpu in one.gpus:
            found.setdefault((gpu.name, gpu.pci_id), []).append(gpu)
    return found


def _gpu_facts(states: Sequence[GpuConditions]) -> dict[str, Any]:
    """Return the conditions of one GPU as JSON data, with shares averaged over all launches."""
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


def _known(
    every: Sequence[Conditions], value: Callable[[Conditions], float | None]
) -> list[float]:
    return [found for one in every if (found := value(one)) is not None]


def _spread(
    every: Sequence[Conditions], value: Callable[[Conditions], float | None]
) -> dict[str, float] | None:
    return _low_to_high(_known(every, value))


def _low_to_high(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"low": min(values), "median": round(median(values), 4), "high": max(values)}


def _count_throttles(every: Sequence[Conditions]) -> int | None:
    counts = [one.cpu_throttles for one in every if one.cpu_throttles is not None]
    return sum(counts) if counts else None
