"""What was launched, sorted by what it shows: ran, crawled, fell, wanted memory, or failed.

A device without headroom need not fail: on some machines it crawls, a step beyond points that
ran well, and differently each time. What it measured then is no speed of the candidate, so
such a launch counts as one that wanted memory; once it ran well, it is believed to.

What ran and later wanted memory of a device, as at a full context, has fallen, and so has what
needs at least as much: its speed still tells of others, but it cannot be picked. Of the host's
memory others may have taken what was wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofit.memory.demand import KV_AXES, Memory, demand
from autofit.memory.dominance import needing_at_least
from autofit.search.point_grid import Floats, Grid, Rows
from autofit.search.problem import Observation
from autofit.search.space import HOST_LAYERS_AXIS

# A step this short, in host layers, that costs this many times as much is no slope.
_STEP_LAYERS = 4
_CRAWL = 1.3
# What a crawl may differ in from what ran well: what takes memory, and what seldom matters.
_PULLING = frozenset({HOST_LAYERS_AXIS, "ubatch"}) | KV_AXES
_MINOR = frozenset({"batch", "threads", "threads_batch"})


@dataclass(frozen=True, slots=True)
class Entry:
    """A launch: what was observed, the row of its point, and its place among all launches."""

    observation: Observation
    row: tuple[int, ...]
    order: int


class History:
    """The launches of a problem's points, in their order."""

    def __init__(self, grid: Grid, observations: Sequence[Observation]) -> None:
        self._grid = grid
        entries = [
            Entry(observation, row, order)
            for order, observation in enumerate(observations)
            if (row := grid.row_of(observation.point)) is not None
        ]
        with_cost = [entry for entry in entries if entry.observation.cost is not None]
        crawling = _crawling(grid, with_cost)
        self.entries = entries
        self.ran = [entry for entry in with_cost if entry.row not in crawling]
        self.crawled = [entry for entry in with_cost if entry.row in crawling]
        self._without = [entry for entry in entries if entry.observation.cost is None]
        self.fallen = self._fallen()

    def _fallen(self) -> frozenset[tuple[int, ...]]:
        """Rows of launches that ran and yet cannot be picked."""
        rows = list(dict.fromkeys(entry.row for entry in self.ran))
        found: set[tuple[int, ...]] = set()
        for row in self.lacking("device"):
            if tuple(row.tolist()) in rows:
                more = needing_at_least(self._grid.axes, self.matrix(rows), row, "device")
                found.update(rows[place] for place in np.flatnonzero(more))
        return frozenset(found)

    def lacking(self, memory: Memory) -> Rows:
        """Rows of the launches that failed for want of a memory, of shape (launches, axes)."""
        found = [e.row for e in self._without if e.observation.lacked == memory]
        return self.matrix(found)

    def refused(self) -> Rows:
        """Rows of the launches that failed for another reason, of shape (launches, axes)."""
        return self.matrix([e.row for e in self._without if e.observation.lacked is None])

    def matrix(self, rows: Sequence[tuple[int, ...]]) -> Rows:
        """Rows one under the other, of shape (rows, axes) also where there are none."""
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self._grid.axes))


def _crawling(grid: Grid, entries: Sequence[Entry]) -> frozenset[tuple[int, ...]]:
    """Rows far slower than a near one that needs no more of anything."""
    costs: dict[tuple[int, ...], float] = {}
    for entry in entries:
        if entry.observation.cost is not None:
            costs[entry.row] = min(entry.observation.cost, costs.get(entry.row, math.inf))
    if len(costs) < 2:  # noqa: PLR2004 - nothing to compare with
        return frozenset()
    rows = np.array(list(costs), dtype=np.int64)
    cost = np.array(list(costs.values()))
    is_step = cost[:, None] > _CRAWL * cost[None, :]
    for place, axis in enumerate(grid.axes):
        here, there = rows[:, place][:, None], rows[:, place][None, :]
        if axis.name in _MINOR:
            continue
        if axis.name not in _PULLING:
            is_step &= here == there
            continue
        needs: Floats = np.array([demand(axis.name, value) for value in axis.values])
        with np.errstate(invalid="ignore"):
            more = needs[here] - needs[there]
            is_step &= (here == there) | (more > 0)
            if axis.name == HOST_LAYERS_AXIS:
                is_step &= (here == there) | (more <= _STEP_LAYERS)
    slow = np.flatnonzero(np.asarray(is_step).any(axis=1))
    known = list(costs)
    return frozenset(known[place] for place in slow)
