"""Cliffs and unsteady candidates among the launches of a tune.

A cliff is a sharp loss between two neighbours that both run and differ in one parameter. A
candidate whose launches differ far more than those of others is unsteady, and may be near a
cliff.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from autofit.errors import UsageError
from autofit.model.placement.layout import SINGLE
from autofit.model.sizes.kv_cache import kv_types
from autofit.model.sizes.tensor_placement import place_tensors
from autofit.session.machine_conditions import describe_conditions
from autofit.session.task import Task
from autofit.statistics.noise import Cliff, Direction, find_cliffs, find_unsteady
from autofit.trial.candidate import Candidate
from autofit.trial.metric import Metric, median_metric
from autofit.trial.parameter_groups import PLACEMENT_PARAMS
from autofit.trial.purpose import Phase
from autofit.trial.trial import Trial

HOST_LAYERS = "n_cpu_moe"
_UBATCH = "ubatch"
# The direction in which a parameter needs more device memory.
_DIRECTIONS: Mapping[str, Direction] = {HOST_LAYERS: "down", _UBATCH: "up"}
_METRICS: tuple[Metric, ...] = ("tg", "pp")
# Excluded: proofs have other requests, and the runtime places the baseline's layers.
_PHASES = frozenset(get_args(Phase)) - {"baseline", "prove"}
# With fewer repeated launches the noise is unknown.
_LEAST_REPEATS = 2


@dataclass(frozen=True, slots=True)
class _Position:
    """The position of a launch: the values of the two parameters, and all other settings."""

    values: Mapping[str, float]
    layout: str
    cache_type: str
    others: Candidate

    def line(self, param: str) -> _Line:
        """Return the line of launches that differ from this one only in one parameter."""
        fixed = tuple(value for name, value in self.values.items() if name != param)
        return _Line(param, self.layout, self.cache_type, self.others, fixed)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of launches that differ in only one parameter."""

    param: str
    layout: str
    cache_type: str
    others: Candidate
    fixed: tuple[float, ...]


def find_tune_cliffs(trials: Sequence[Trial], task: Task) -> list[Cliff]:
    """Find the cliffs between neighbours among a study's launches; return the worst first."""
    found = []
    for metric in _METRICS:
        noise = _noise(trials, task, metric)
        for line, launches in _lines(trials, task, metric).items():
            found += find_cliffs(
                line.param,
                launches,
                metric,
                toward=_DIRECTIONS[line.param],
                noise=noise,
                layout=line.layout,
                cache_type=line.cache_type,
            )
    return sorted(found, key=lambda cliff: cliff.ratio)


def unsteady_notes(trials: Sequence[Trial], task: Task) -> list[str]:
    """Return a note on each candidate whose launches differ far more than those of others."""
    values: dict[str, list[float]] = defaultdict(list)
    launches: dict[str, list[Trial]] = defaultdict(list)
    for trial, value in _measured(trials, task, task.objective):
        values[trial.candidate.key].append(value)
        launches[trial.candidate.key].append(trial)
    return [
        f"launches {', '.join(str(trial.number) for trial in launches[one.key])} of one candidate "
        f"differ by {one.spread:.0%}, {_times(one.times)} those of others: "
        f"{_unsteady_reason(launches[one.key])}"
        for one in find_unsteady(values)
    ]


def _unsteady_reason(trials: Sequence[Trial]) -> str:
    host = describe_conditions(trials)
    is_quiet = host is None or host["is_quiet"]
    edge = "the candidate may be at the limit of memory"
    return edge if is_quiet else f"the machine was busy, or {edge}"


def _times(times: float) -> str:
    return "unlike" if math.isinf(times) else f"{times:.0f} times as much as"


def _measured(
    trials: Sequence[Trial], task: Task, metric: Metric
) -> Iterator[tuple[Trial, float]]:
    for trial in trials:
        if trial.is_completed and trial.phase in _PHASES:
            value = median_metric(trial.measurement, task.workload, metric)
            if value is not None:
                yield trial, value


def _noise(trials: Sequence[Trial], task: Task, metric: Metric) -> float | None:
    """Estimate the relative standard deviation of launches from repeated launches."""
    logs: dict[str, list[float]] = defaultdict(list)
    for trial, value in _measured(trials, task, metric):
        logs[trial.candidate.key].append(math.log(value))
    repeated = [values for values in logs.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in repeated)
    if freedom < _LEAST_REPEATS:
        return None
    return math.sqrt(sum(float(np.var(v) * len(v)) for v in repeated) / freedom)


def _lines(
    trials: Sequence[Trial], task: Task, metric: Metric
) -> dict[_Line, dict[float, list[float]]]:
    """Map each line and value of its parameter to the metrics of its launches."""
    lines: dict[_Line, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial, value in _measured(trials, task, metric):
        position = _position(trial, task)
        if position is not None:
            for param in _DIRECTIONS:
                lines[position.line(param)][position.values[param]].append(value)
    return lines


def _position(trial: Trial, task: Task) -> _Position | None:
    candidate = trial.candidate
    host_layers = _host_layers(trial, task)
    if host_layers is None:
        return None
    without = dict.fromkeys((*PLACEMENT_PARAMS, _UBATCH))
    return _Position(
        values={HOST_LAYERS: host_layers, _UBATCH: candidate.get_int(_UBATCH, 512)},
        layout=trial.layout,
        cache_type=kv_types(candidate)[0],
        others=candidate.with_params(**without),
    )


def _host_layers(trial: Trial, task: Task) -> int | None:
    """Return the count in boundaries: `n_cpu_moe` on one device, else host expert layers."""
    candidate = trial.candidate
    if trial.layout.startswith(SINGLE) and HOST_LAYERS in candidate.params:
        return candidate.get_int(HOST_LAYERS, 0)
    try:
        placed = place_tensors(task.inventory, candidate, task.devices)
    except UsageError:
        return None
    is_moe = task.inventory.is_moe
    return len(placed.host_expert_blocks if is_moe else placed.host_ffn_blocks)
