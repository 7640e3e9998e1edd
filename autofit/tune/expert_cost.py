"""What prefetch and an expert cache cost the winner in memory, and whether they gained.

A runtime reports a cache in its log. Prefetch slots are in no report: they are counted by what
launches with them took of a device beyond what launches without them did.
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

# memory: of the devices, as counted; log: what the runtime said; estimate: nobody counted.
Source = Literal["memory", "log", "estimate"]
# What a cache holds where the runtime says that it made none.
_OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCost:
    """One setting for experts in system RAM as the winner has it.

    `mib` is by device what it takes, `source` who told, None where it is off. Of `asked`
    prefetch slots `taken` are there, None where nobody counted. `launches` measured it turned
    on; the fastest of them took `time_ratio` times as long as the fastest without, None where
    one of the two is missing.
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
        """The cost as `tune --json` prints it."""
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
    """What each setting costs that was searched, pinned or given."""
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
        mib, source, asked, taken = _slots(winner, measured, memory)
    else:
        mib, source = _cache(winner, measured, memory)
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


def _slots(
    winner: Candidate, measured: Sequence[Measurement], memory: MemoryModel
) -> tuple[Mapping[str, float], Source, int | None, int | None]:
    """What the slots take, and how many were asked for and are there."""
    wanted = memory.expected_slots(winner)
    if wanted is None:  # all experts are on devices
        return {}, "estimate", None, None
    beyond = []
    for launch in measured:
        taken, row = (
            launch_usage_mib(launch.readings, wanted.device),
            launch.reported.get(wanted.device),
        )
        if taken is not None and row is not None and wanted.unreported_mib is not None:
            beyond.append(taken - row.buffers_mib - wanted.unreported_mib)
    if not beyond:
        whole = {wanted.device: wanted.count * wanted.slot_mib}
        return whole, "estimate", wanted.count, None
    # Short prompts need no slots: the launch that took most tells.
    count = min(max(0, round(max(beyond) / wanted.slot_mib)), wanted.count)
    mib = {wanted.device: count * wanted.slot_mib} if count else {}
    return mib, "memory", wanted.count, count


def _cache(
    winner: Candidate, measured: Sequence[Measurement], memory: MemoryModel
) -> tuple[Mapping[str, float], Source]:
    for launch in measured:
        told = {name: row.expert_cache_mib for name, row in launch.reported.items()}
        known = {name: mib for name, mib in told.items() if mib}
        if known or launch.applied.get("moe_cache") == _OFF:
            return known, "log"
    estimate = memory.predict(winner)
    rows = estimate.devices if estimate else ()
    return {row.name: row.expert_cache_mib for row in rows if row.expert_cache_mib}, "estimate"


def _comparison(name: str, trials: Sequence[Trial], task: Task) -> tuple[int, float | None]:
    """How many launches had it on, and how much longer their fastest took than without.

    The baseline is no comparison: it differs in all else, too.
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
