"""The search of a tune, run on a recorded table instead of a machine.

The search may only choose settings of the table. A launch of a point returns one of its rows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from autofit.errors import UsageError
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.replay.recorded_table import PARAMS, RecordedTable, Settings, TableRow
from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy
from autofit.search.problem import TYPICAL_REQUESTS, Fit, Goal, ModelTraffic, Observation, Problem
from autofit.search.proposer import SurrogateProposer
from autofit.search.space import HOST_LAYERS_AXIS, Axis, Point, Space
from autofit.session.search_problem import model_traffic
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.device import Device
from autofit.trial.metric import cost, is_higher_better
from autofit.trial.workload import Request

# For a user, a pick with this share of the best value is as good as the best.
GOOD_ENOUGH = 0.98
_LAYERS_COLUMN = "ncmoe"
# A count of this size, such as 999 in a table, means all layers.
_ALL_LAYERS = 200

PointKey = tuple[tuple[str, ParamValue], ...]


@dataclass(frozen=True, slots=True)
class TableMachine:
    """The model and devices of a table's machine, for memory predictions."""

    inventory: ModelInventory
    devices: tuple[Device, ...]


class TableProblem:
    """The search problem of a table: its points, and the rows of each point."""

    def __init__(self, table: RecordedTable, machine: TableMachine | None = None) -> None:
        self.table, self.machine = table, machine
        repeats = table.repeats
        used = [name for index, name in enumerate(PARAMS) if any(s[index] != "" for s in repeats)]
        self.points: tuple[Point, ...] = tuple(_point(settings, used) for settings in repeats)
        self._rows = dict(zip(map(_key, self.points), repeats.values(), strict=True))

    def repeats(self, point: Point) -> list[TableRow]:
        """Return the rows of a point."""
        return self._rows[_key(point)]

    def median_value(self, point: Point) -> float | None:
        """Return the median of a point's repeats, or None if more than half of them failed."""
        rows = self.repeats(point)
        values = [row.value(self.table.metric) for row in rows]
        ran = [value for value in values if value is not None]
        return median(ran) if 2 * len(ran) >= len(rows) and ran else None

    @property
    def best_value(self) -> float:
        """The best value of any point."""
        values = [
            value for point in self.points if (value := self.median_value(point)) is not None
        ]
        return max(values) if is_higher_better(self.table.metric) else min(values)

    def is_good_enough(self, value: float | None) -> bool:
        """Return whether a value is within 2% of the best."""
        if value is None:
            return False
        best = self.best_value
        share = value / best if is_higher_better(self.table.metric) else best / value
        return share >= GOOD_ENOUGH

    def problem(self) -> Problem:
        """Return the search problem."""
        table, request = self.table, self._request()
        return Problem(
            space=Space(table.name, "any", self._axes()),
            layouts=(),
            most_host_layers=0,
            candidate_of=self._candidate,
            fit_of=self._fit,
            goal=Goal(table.metric, (request,)),
            traffic=self._traffic(request),
            points=self.points,
            # Another launch of a recorded row would only return it again.
            may_repeat=lambda point, launches: launches < len(self.repeats(point)),
        )

    def _request(self) -> Request:
        first, typical = self.table.rows[0], TYPICAL_REQUESTS[0]
        return Request(
            first.n_prompt or typical.prompt_tokens, first.n_gen or typical.predicted_tokens
        )

    def _axes(self) -> tuple[Axis, ...]:
        return tuple(
            Axis(name, _sorted({point[name] for point in self.points}), (_param(name),))
            for name in self.points[0]
        )

    def _candidate(self, point: Point) -> Candidate:
        params: dict[str, ParamValue] = {"n_gpu_layers": 999}
        if self.table.rows[0].n_ctx:
            params["context"] = self.table.rows[0].n_ctx
        params.update({_param(name): value for name, value in point.items() if value != ""})
        return Candidate(params)

    def _fit(self, candidate: Candidate) -> Fit | None:
        if self.machine is None:
            return None
        try:
            estimate = estimate_memory(self.machine.inventory, candidate, self.machine.devices)
        except UsageError:  # this tensor_split is no list of numbers
            return None
        fits = [Fit(device.free_mib, device.total_mib) for device in estimate.devices]
        return min(fits, key=lambda fit: fit.margin_mib, default=None)

    def _traffic(self, request: Request) -> ModelTraffic:
        if self.machine is not None:
            depth = request.prompt_tokens + request.predicted_tokens // 2
            return model_traffic(self.machine.inventory, depth)
        values = [point.get(HOST_LAYERS_AXIS, "") for point in self.points]
        layers = [int(count) for count in values if count != ""]
        return ModelTraffic(layers=max([1, *layers]) if layers else ModelTraffic().layers)


def _point(settings: Settings, used: list[str]) -> Point:
    values = dict(zip(PARAMS, settings, strict=True))
    count = values[_LAYERS_COLUMN]
    if count != "" and int(count) > _ALL_LAYERS:
        values[_LAYERS_COLUMN] = _ALL_LAYERS
    return {_axis_name(name): values[name] for name in used}


def _axis_name(column: str) -> str:
    return HOST_LAYERS_AXIS if column == _LAYERS_COLUMN else PARAMS[column]


def _param(axis_name: str) -> str:
    return PARAMS[_LAYERS_COLUMN] if axis_name == HOST_LAYERS_AXIS else axis_name


def _sorted(values: set[ParamValue]) -> tuple[ParamValue, ...]:
    """Sort values: first all numbers, then all texts."""
    return tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))


def _key(point: Point) -> PointKey:
    return tuple(sorted(point.items()))


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """One replay of a table.

    Attributes:
        seed: decides which repeat of a point is returned.
        launches_to_98pct: the number of launches until the pick was within 2% of the best and
            remained so, or None if the last pick is not.
        best_found: the median value of the last pick.
        stopped_after: the number of launches after which a tune would have stopped. Later
            launches only show how many it would have needed.
    """

    seed: int
    launches: int
    launches_to_98pct: int | None
    failures: int
    best_found: float | None
    stopped_after: int | None


def replay(
    table: TableProblem,
    *,
    seed: int,
    max_launches: int | None,
    proposer: SurrogateProposer | None = None,
) -> ReplayRun:
    """Search a table once.

    The search continues after a tune would have stopped, until its pick is good enough. The result
    then shows how many launches are needed.
    """
    study = SearchStudy(table.problem(), proposer, seed=seed)
    policy = SearchPolicy(study)
    rng = random.Random(seed)
    launches = failures = 0
    reached: int | None = None
    stopped: int | None = None
    pick: float | None = None
    while max_launches is None or launches < max_launches:
        proposal = study.ask()
        if proposal is None:
            break
        if stopped is None and policy.may_stop(proposal):
            stopped = launches
        if stopped is not None and reached is not None:
            break
        launches += 1
        failures += not _launch(study, table, proposal.point, rng)
        ranked = study.ranked()
        pick = table.median_value(ranked[0].point) if ranked else None
        if not table.is_good_enough(pick):
            reached = None  # a noisy repeat may replace a good pick by a worse one
        elif reached is None:
            reached = launches
    return ReplayRun(seed, launches, reached, failures, pick, stopped)


def _launch(study: SearchStudy, table: TableProblem, point: Point, rng: random.Random) -> bool:
    """Add one of a point's rows to the search, and return whether its launch ran."""
    row = rng.choice(table.repeats(point))
    metric = table.table.metric
    value = row.value(metric)
    study.add(
        Observation(
            point,
            None if value is None else cost(value, metric),
            row.exhausted_memory,
            prompt_s=1 / row.pp_per_s if row.is_ok and row.pp_per_s else None,
            predicted_s=1 / row.tg_per_s if row.is_ok and row.tg_per_s else None,
        )
    )
    return row.is_ok


def summarize(problem: TableProblem, runs: Sequence[ReplayRun]) -> dict[str, Any]:
    """Summarize replays, in the form that `replay --json` prints."""
    table = problem.table
    reached = [run.launches_to_98pct for run in runs if run.launches_to_98pct is not None]
    found = [run.best_found for run in runs if run.best_found is not None]
    first = table.rows[0]
    # A run that never reached 98% counts as later than all that did.
    counts = sorted(reached) + [None] * (len(runs) - len(reached))
    return {
        "table": table.name,
        "metric": table.metric,
        "group": {"n_ctx": first.n_ctx, "n_prompt": first.n_prompt, "n_gen": first.n_gen},
        "rows": len(table.rows),
        "settings": len(problem.points),
        "launches_to_98pct": _median_or_none(counts),
        "failures": median(run.failures for run in runs),
        "best_found": median(found) if found else None,
        "best_possible": problem.best_value,
        "direction": "maximize" if is_higher_better(table.metric) else "minimize",
        "per_seed": [asdict(run) for run in runs],
    }


def _median_or_none(counts: Sequence[int | None]) -> float | None:
    """Return the median of counts that are sorted with None last. The median may be None."""
    low, high = counts[(len(counts) - 1) // 2], counts[len(counts) // 2]
    if low is None:
        return None
    return low if high is None else (low + high) / 2
