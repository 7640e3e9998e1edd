"""The launches of a search, sorted by outcome: ran, spilled, out of memory, failed otherwise.

A device without headroom need not fail. On some machines the driver pages its memory to system
RAM, and the launch is much slower than a neighbouring point that ran, and differently each
time. What it measured is not the speed of the candidate, so such a launch is a suspected spill.
It counts as out of memory, until the point runs at full speed.

A point that ran may be out of device memory later, for example at full context. It and every
point that needs at least as much device memory have failed their proof. Their speeds still
count as data, but they cannot be picked. Only device memory rules out other points: host
memory may have been taken by another program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofit.memory.demand import KV_AXES, Memory, demand
from autofit.search.point_grid import Floats, PointGrid, Rows
from autofit.search.problem import Observation
from autofit.search.space import HOST_LAYERS_AXIS

# A point is a suspected spill if it costs this many times as much as a point that needs less
# memory and has at most this many host layers more.
_SPILL_COST_RATIO = 1.3
_MOST_LAYERS_APART = 4
# Axes in which the two may differ: those that need device memory, and one that hardly matters.
# With other threads a launch may be far slower for another reason: on some machines threads on
# all cores wait for each other.
_MEMORY_AXES = frozenset({HOST_LAYERS_AXIS, "ubatch"}) | KV_AXES
_HARMLESS_AXIS = "batch"


@dataclass(frozen=True, slots=True)
class GridObservation:
    """An observation with the row of its point and its index among all launches."""

    observation: Observation
    row: tuple[int, ...]
    index: int


class LaunchHistory:
    """The launches of a problem's points, in their order.

    Attributes:
        launches: all of them.
        ran: those with a cost that is the speed of the candidate.
        spilled: those that ran but are suspected spills.
        failed_proof: rows of points that ran but cannot be picked, since they, or points that need
            no more device memory, ran out of it later.
    """

    def __init__(self, grid: PointGrid, observations: Sequence[Observation]) -> None:
        self._grid = grid
        self.launches = [
            GridObservation(observation, row, index)
            for index, observation in enumerate(observations)
            if (row := grid.row_of(observation.point)) is not None
        ]
        if grid.work is not None:
            for one in self.launches:
                grid.work.learn(one.row)
        with_cost = [one for one in self.launches if one.observation.cost is not None]
        suspects = _suspected_spills(grid, with_cost)
        self.ran = [one for one in with_cost if one.row not in suspects]
        self.spilled = [one for one in with_cost if one.row in suspects]
        self._failed = [one for one in self.launches if one.observation.cost is None]
        self.failed_proof = self._failed_proof()

    def _failed_proof(self) -> frozenset[tuple[int, ...]]:
        rows = list(dict.fromkeys(one.row for one in self.ran))
        found: set[tuple[int, ...]] = set()
        for row in self.out_of_memory("device"):
            if tuple(row.tolist()) in rows:
                more = self._grid.needing_at_least("device", self.matrix(rows), row)
                found.update(rows[index] for index in np.flatnonzero(more))
        return frozenset(found)

    def out_of_memory(self, memory: Memory) -> Rows:
        """Return the rows of launches that ran out of a memory, of shape (launches, axes)."""
        found = [one.row for one in self._failed if one.observation.exhausted_memory == memory]
        return self.matrix(found)

    @property
    def failed_otherwise(self) -> list[GridObservation]:
        """All other failed launches."""
        return [one for one in self._failed if one.observation.exhausted_memory is None]

    def matrix(self, rows: Sequence[tuple[int, ...]]) -> Rows:
        """Return rows as a matrix of shape (rows, axes), also without any row."""
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self._grid.axes))


def _suspected_spills(
    grid: PointGrid, launches: Sequence[GridObservation]
) -> frozenset[tuple[int, ...]]:
    """Return rows that are much slower than a near one that needs less device memory."""
    costs: dict[tuple[int, ...], float] = {}
    for one in launches:
        if one.observation.cost is not None:
            costs[one.row] = min(one.observation.cost, costs.get(one.row, math.inf))
    if len(costs) < 2:  # noqa: PLR2004 - nothing to compare with
        return frozenset()
    rows = np.array(list(costs), dtype=np.int64)
    cost = np.array(list(costs.values()))
    # is_spill[i, j]: compared with row j, row i is a suspected spill.
    is_spill = cost[:, None] > _SPILL_COST_RATIO * cost[None, :]
    for column, axis in enumerate(grid.axes):
        here, there = rows[:, column][:, None], rows[:, column][None, :]
        if axis.name == _HARMLESS_AXIS:
            continue
        if axis.name not in _MEMORY_AXES:
            is_spill &= here == there
            continue
        demands: Floats = np.array([demand(axis.name, value) for value in axis.values])
        with np.errstate(invalid="ignore"):
            more = demands[here] - demands[there]
            is_spill &= (here == there) | (more > 0)
            if axis.name == HOST_LAYERS_AXIS:
                is_spill &= (here == there) | (more <= _MOST_LAYERS_APART)
    slow = np.flatnonzero(np.asarray(is_spill).any(axis=1))
    known = list(costs)
    return frozenset(known[index] for index in slow)
