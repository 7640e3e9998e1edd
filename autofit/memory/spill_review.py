"""Spills that are found later: finished launches are judged again with all known launches.

A spill is no error of the runtime: the launch completes, but slowly, because memory that was
meant for a device is in system RAM. One launch alone may not show this. A launch with similar
settings does, if it shows the use beyond the runtime's buffers, the usual speed, or how full a
device is when it spills. `runtime.diagnosis.memory_evidence` finds the signs of a single launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autofit.memory.memory_model import (
    DECISIVE_IN_STEPS,
    DECISIVE_PARAMS,
    MemoryModel,
    agree,
    is_at_full_level,
)
from autofit.runtime.diagnosis.memory_evidence import ExpectedUsage, find_spill, launch_usage_mib
from autofit.trial.measurement import Measurement
from autofit.trial.outcome import Outcome, Spilled
from autofit.trial.trial import Trial

# A device that is as full as in a spill, and lacks more than this rounding error, spilled again.
_MISSING_MIB = 2.0


def review_launches(memory: MemoryModel) -> list[Trial]:
    """Judge all completed launches again, and return those that spilled, as is known now."""
    spilled = []
    for index, trial in enumerate(memory.launches):
        outcome = judge_again(trial, memory)
        if outcome != trial.outcome:
            memory.launches[index] = replace(trial, outcome=outcome)
            spilled.append(memory.launches[index])
    return spilled


def judge_again(trial: Trial, memory: MemoryModel) -> Outcome:
    """Return the outcome of a launch, judged with all others: a completed one may have spilled."""
    measured = trial.measurement
    if not trial.is_completed or measured is None:
        return trial.outcome
    levels = memory.full_levels_mib()
    unreported = memory.unreported_mib(trial.candidate, excluding=trial)
    holdings = [
        ExpectedUsage(
            device=name,
            buffers_mib=row.buffers_mib,
            unreported_mib=unreported.get(name),
            is_shared=name in memory.shared_devices,
        )
        for name, row in measured.reported.items()
    ]
    spill = find_spill(
        measured.readings, holdings, slowdown=_slowdown(trial, measured, memory, levels)
    )
    if spill is not None:
        return spill
    same = memory.unreported_of_same(trial.candidate, excluding=trial)
    for holding in holdings:
        full = _spilled_at_full_level(measured, holding, same.get(holding.device), levels)
        if full is not None:
            return full
    return trial.outcome


def needs_neighbour(trial: Trial, memory: MemoryModel) -> bool:
    """Return whether a launch filled a device, so that only one with more room can judge it."""
    measured = trial.measurement
    if measured is None or not trial.is_completed:
        return False
    levels = {name: 0.0 for name in measured.reported if name not in memory.shared_devices}
    levels |= memory.full_levels_mib()
    same = memory.unreported_of_same(trial.candidate, excluding=trial, full_levels_mib=levels)
    return any(
        is_at_full_level(measured, name, levels) and name not in same for name in measured.reported
    )


def _slowdown(
    trial: Trial, measured: Measurement, memory: MemoryModel, levels: Mapping[str, float]
) -> float | None:
    """Return how many times as slow a launch is as the nearest one with the same settings."""
    neighbours = [
        (abs(_buffers_mib(measured) - _buffers_mib(other.measurement)), other)
        for other in memory.launches
        if other.is_completed
        and other.measurement is not None
        and other is not trial
        and other.layout == trial.layout
        and agree(trial.candidate, other.candidate, (*DECISIVE_PARAMS, *DECISIVE_IN_STEPS))
        and not any(
            is_at_full_level(other.measurement, name, levels)
            for name in other.measurement.reported
        )
    ]
    if not neighbours:
        return None
    _, nearest = min(neighbours, key=lambda one: one[0])
    ours, other_s = _seconds_per_token(trial), _seconds_per_token(nearest)
    return max((ours[kind] / other_s[kind] for kind in ours if kind in other_s), default=None)


def _buffers_mib(measured: Measurement) -> float:
    return sum(row.buffers_mib for row in measured.reported.values())


def _spilled_at_full_level(
    measured: Measurement,
    holding: ExpectedUsage,
    unreported_mib: Sequence[float] | None,
    levels: Mapping[str, float],
) -> Spilled | None:
    """Return the spill on a device that is as full as in an earlier spill and holds too little."""
    name = holding.device
    used_mib = launch_usage_mib(measured.readings, name)
    if used_mib is None or not unreported_mib or not is_at_full_level(measured, name, levels):
        return None
    missing = holding.buffers_mib + min(unreported_mib) - used_mib
    if missing <= _MISSING_MIB:
        return None
    text = f"{name} is as full as in a launch that spilled, and lacks {missing:.0f} MiB"
    return Spilled("prompt", text, name, round(missing, 1))


def _seconds_per_token(trial: Trial) -> dict[str, float]:
    """Return the least seconds for each kind of token, as other programs may slow requests."""
    samples = trial.measurement.samples if trial.measurement else ()
    prompt = [s.prompt_s / s.prompt_tokens for s in samples if s.pp_per_s]
    predicted = [1 / s.tg_per_s for s in samples if s.tg_per_s]
    found = {"prompt": min(prompt, default=0.0), "predicted": min(predicted, default=0.0)}
    return {kind: seconds for kind, seconds in found.items() if seconds}
