"""The memory cost of the winner's prefetch and expert cache, and their effect on speed.

A runtime reports an expert cache in its log, but no prefetch slots. Slots are counted from the
memory that launches with slots used more than launches without.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from autofit.memory.memory_model import MemoryModel
from autofit.runtime.diagnosis.memory_evidence import launch_usage_mib
from autofit.session.task import Task
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.measurement import Measurement
from autofit.trial.metric import cost, median_metric
from autofit.trial.parameter_groups import EXPERT_MEMORY_PARAMS, PREFETCH_PARAMS
from autofit.trial.trial import Trial

# memory: measured on the devices; log: reported by the runtime; estimate: not measured.
Source = Literal["memory", "log", "estimate"]
# The reported value of a cache that the runtime did not create.
_OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCost:
    """The cost of one setting of the winner for experts in system RAM.

    Attributes:
        mib: the memory that the setting takes on each device.
        source: the source of that number, or None if the setting is off.
        asked: the number of prefetch slots that were asked for.
        taken: the number of prefetch slots on the device, or None if they were not counted.
        launches: the number of launches with the setting on.
        time_ratio: the time of the fastest launch with the setting divided by the time of the
            fastest without, or None if one of the two is missing.
    """

    param: str
    value: ParamValue
    mib: Mapping[str, float] = field(default_factory=dict)
    source: Source | None = None
    asked: int | None = None
    taken: int | None = None
    launches: int = 0
    time_ratio: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the cost as `tune --json` prints it."""
        return {
            "param": self.param,
            "value": self.value,
            "mib": {name: round(mib, 1) for name, mib in self.mib.items()},
            "source": self.source,
            "slots_asked": self.asked,
            "slots_taken": self.taken,
            "launches": self.launches,
            "time_ratio": None if self.time_ratio is None else round(self.time_ratio, 4),
        }


def expert_costs(
    winner: Candidate, trials: Sequence[Trial], memory: MemoryModel, task: Task
) -> list[ExpertCost]:
    """Return the cost of each setting that was searched, pinned, or given by the user."""
    space = task.space
    searched = {name for axis in space.axes if any(axis.values) for name in axis.params}
    names = [name for name in EXPERT_MEMORY_PARAMS if name in searched or winner.get_amount(name)]
    return [
        _cost(name, winner, trials, memory, task) for name in names if task.runtime.supports(name)
    ]


def _cost(
    name: str,
    winner: Candidate,
    trials: Sequence[Trial],
    memory: MemoryModel,
    task: Task,
) -> ExpertCost:
    launches, ratio = _comparison(name, trials, task)
    value = winner.params.get(name, 0)
    plain = ExpertCost(param=name, value=value, launches=launches, time_ratio=ratio)
    if not winner.get_amount(name):
        return plain
    measured = [
        trial.measurement
        for trial in trials
        if trial.candidate == winner and trial.is_completed and trial.measurement is not None
    ]
    mib: Mapping[str, float]
    asked = taken = None
    if name in PREFETCH_PARAMS:
        mib, source, asked, taken = _measure_slots(winner, measured, memory)
    else:
        mib, source = _measure_cache(winner, measured, memory)
    return ExpertCost(
        param=name,
        value=value,
        mib=mib,
        source=source,
        asked=asked,
        taken=taken,
        launches=launches,
        time_ratio=ratio,
    )


def _measure_slots(
    winner: Candidate, measured: Sequence[Measurement], memory: MemoryModel
) -> tuple[Mapping[str, float], Source, int | None, int | None]:
    """Return the slots' memory on each device, its source, and the slots asked for and taken."""
    expected = memory.expected_slots(winner)
    if expected is None:  # all experts are on devices
        return {}, "estimate", None, None
    beyond = []
    for launch in measured:
        taken, row = (
            launch_usage_mib(launch.readings, expected.device),
            launch.reported.get(expected.device),
        )
        if taken is not None and row is not None and expected.unreported_mib is not None:
            beyond.append(taken - row.buffers_mib - expected.unreported_mib)
    if not beyond:
        whole = {expected.device: expected.count * expected.slot_mib}
        return whole, "estimate", expected.count, None
    # Short prompts need no slots, so only the launch that used the most memory shows them all.
    count = min(max(0, round(max(beyond) / expected.slot_mib)), expected.count)
    mib = {expected.device: count * expected.slot_mib} if count else {}
    return mib, "memory", expected.count, count


def _measure_cache(
    winner: Candidate, measured: Sequence[Measurement], memory: MemoryModel
) -> tuple[Mapping[str, float], Source]:
    for launch in measured:
        reported = {name: row.expert_cache_mib for name, row in launch.reported.items()}
        known = {name: mib for name, mib in reported.items() if mib}
        if known or launch.applied.get("moe_cache") == _OFF:
            return known, "log"
    estimate = memory.predict(winner)
    rows = estimate.devices if estimate else ()
    return {row.name: row.expert_cache_mib for row in rows if row.expert_cache_mib}, "estimate"


def _comparison(name: str, trials: Sequence[Trial], task: Task) -> tuple[int, float | None]:
    """Return the launches with a setting on, and their best time divided by the best without it.

    The baseline is left out, because it also differs in other settings.
    """
    costs: dict[tuple[bool, Candidate], list[float]] = defaultdict(list)
    launches = 0
    for trial in trials:
        if trial.phase == "prove" or trial.shows_fit_only or not trial.is_completed:
            continue
        if trial.is_verbatim:
            continue
        value = median_metric(trial.measurement, task.workload, task.objective)
        if value is None:
            continue
        is_on = trial.candidate.get_amount(name) > 0
        launches += is_on
        costs[is_on, trial.candidate].append(cost(value, task.objective))
    best = {
        is_on: min((median(seen) for (on, _), seen in costs.items() if on == is_on), default=None)
        for is_on in (True, False)
    }
    on, off = best[True], best[False]
    return launches, on / off if on and off else None
