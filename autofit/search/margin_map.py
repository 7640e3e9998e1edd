"""Margins of memory for thousands of points from a few estimates.

An estimate takes milliseconds, and a space has tens of thousands of points, so estimates are
asked for only where the answer decides something. Everywhere else a margin is told from those
already asked: on one layout it is nearly linear in host layers and in what each value pulls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autofit.search.dominance import demand, is_free
from autofit.search.grid import Floats, Grid, Rows
from autofit.search.problem import MEMORIES, Fit, Memory
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS

# How strongly a slope is held to nothing before estimates tell it.
_RIDGE = 1e-4
# How fast the nearest known point gains weight; the whole range of a value is 1.
_NEARNESS = 8.0
# A margin that stands for "no such candidate".
IMPOSSIBLE_MIB = -1e9
# What splits points into groups of their own line: how layers lie, and for the host also
# whether their weights are mapped.
_GROUPED: dict[Memory, tuple[str, ...]] = {
    "device": (LAYOUT_AXIS,),
    "host": (LAYOUT_AXIS, "load_mode"),
}


class MarginMap:
    """Exact margins of both memories where asked for, told ones elsewhere; nan if unknown."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._places = [
            i
            for i, axis in enumerate(grid.axes)
            if not all(is_free(axis.name, memory) for memory in MEMORIES)
        ]
        self._exact: dict[int, tuple[float, float]] = {}
        self._rows: dict[int, Rows] = {}
        self.needed_mib = dict.fromkeys(MEMORIES, 0.0)
        self._lines: dict[Memory, _Lines] = {name: _Lines(grid, name) for name in MEMORIES}

    @property
    def has_estimates(self) -> bool:
        """Whether anything was estimated at all."""
        return self.needed_mib["device"] > 0

    def is_exact(self, row: Rows) -> bool:
        """Whether the margins of a row have been estimated."""
        return self._code(row) in self._exact

    def _code(self, row: Rows) -> int:
        """What of a row decides its margins, as a number."""
        return int(self._grid.codes(row[None, :], self._places)[0])

    def estimate(self, row: Rows) -> None:
        """Have a row of shape (axes,) estimated, if not done before."""
        code = self._code(row)
        if code not in self._exact:
            problem = self._grid.problem
            candidate = problem.candidate_of(self._grid.point_of(row))
            fit = problem.fit_of(candidate) if candidate is not None else None
            self._exact[code] = self._margins(fit, is_possible=candidate is not None)
            self._rows[code] = row.copy()

    def _margins(self, fit: Fit | None, *, is_possible: bool) -> tuple[float, float]:
        if not is_possible:
            return IMPOSSIBLE_MIB, math.nan
        if fit is None:
            return math.nan, math.nan
        needed = {"device": fit.needed_mib, "host": fit.host_needed_mib}
        for name in MEMORIES:
            self.needed_mib[name] = max(self.needed_mib[name], needed[name])
        return fit.margin_mib, fit.host_margin_mib

    def refresh(self) -> None:
        """Ask again for all that is known: launches may have corrected the estimates."""
        rows = list(self._rows.values())
        self._exact.clear()
        for row in rows:
            self.estimate(row)

    def ask_ends(self) -> None:
        """Estimate some of every layout with the first values, if not done before.

        After it is known whether anything can be estimated at all.
        """
        grid = self._grid
        layers, layout = grid.place(HOST_LAYERS_AXIS), grid.place(LAYOUT_AXIS)
        if layers is None or layout is None:
            for row in grid.combinations(())[:1]:
                self.estimate(row)
            return
        most = len(grid.axes[layers].values) - 1
        for layout_place in range(len(grid.axes[layout].values)):
            for host_layers in (most // 3, most):
                row = np.zeros(len(grid.axes), dtype=np.int64)
                row[layout], row[layers] = layout_place, host_layers
                self.estimate(row)

    def margins(self, rows: Rows, memory: Memory) -> Floats:
        """Margins of rows, of shape (rows,): exact where estimated, told elsewhere."""
        codes, first, back = np.unique(
            self._grid.codes(rows, self._places), return_index=True, return_inverse=True
        )
        known = np.array(list(self._rows.values())).reshape(-1, len(self._grid.axes))
        values = np.array(list(self._exact.values())).reshape(-1, 2)[:, MEMORIES.index(memory)]
        found = self._lines[memory].told(rows[first], known, values)
        exact = np.array(list(self._exact), dtype=np.int64)
        place = np.minimum(np.searchsorted(codes, exact), len(codes) - 1)
        hit = codes[place] == exact
        found[place[hit]] = values[hit]
        margins: Floats = found[back.reshape(-1)]
        return margins


class _Lines:
    """One line for each group of points, through what is known of the group."""

    def __init__(self, grid: Grid, memory: Memory) -> None:
        self._grid = grid
        axes = [(i, axis.name) for i, axis in enumerate(grid.axes)]
        self._grouping = [i for i, name in axes if name in _GROUPED[memory]]
        self._pulls = {
            i: self._pull(i)
            for i, name in axes
            if i not in self._grouping and not is_free(name, memory)
        }

    def told(self, rows: Rows, known: Rows, values: Floats) -> Floats:
        """Margins of rows by the known rows of their groups, nan where there are none."""
        found = np.full(len(rows), math.nan)
        usable = (values > IMPOSSIBLE_MIB) & ~np.isnan(values)
        groups, known_groups = self._groups(rows), self._groups(known)
        for group in np.unique(groups):
            here, there = groups == group, usable & (known_groups == group)
            if there.any():
                found[here] = self._line(rows[here], known[there], values[there])
        return found

    def _groups(self, rows: Rows) -> Rows:
        return self._grid.codes(rows, self._grouping)

    def _line(self, rows: Rows, known: Rows, values: Floats) -> Floats:
        """Ridge regression on pulls, plus what it misses at the nearest known points."""
        features, wanted = self._features(known), self._features(rows)
        middle = values.mean()
        gram = features.T @ features + _RIDGE * np.eye(features.shape[1])
        weights = np.linalg.solve(gram, features.T @ (values - middle))
        missed = values - middle - features @ weights
        distance = np.abs(wanted[:, None, :] - features[None, :, :]).sum(axis=2)
        near = np.exp(-_NEARNESS * distance)
        correction = (near @ missed) / (near.sum(axis=1) + 1e-9)
        found: Floats = middle + wanted @ weights + correction
        return found

    def _features(self, rows: Rows) -> Floats:
        columns: list[Sequence[float] | Floats] = [np.ones(len(rows))]
        for place, pull in self._pulls.items():
            columns.extend(pull[rows[:, place]].T)
        return np.stack(columns, axis=1)

    def _pull(self, place: int) -> Floats:
        """A value's features, of shape (values, features): its demand, or one of its own."""
        axis = self._grid.axes[place]
        needs = np.array([demand(axis.name, value) for value in axis.values])
        if np.isnan(needs).any():
            return np.eye(len(axis.values))
        low, high = needs.min(), needs.max()
        pull: Floats = (needs - low)[:, None] / ((high - low) or 1.0)
        return pull
