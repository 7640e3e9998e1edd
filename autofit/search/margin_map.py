"""Margins of memory for thousands of points from a few estimates.

An estimate takes milliseconds, and a space has tens of thousands of points, so estimates are
asked for only where the answer decides something. Everywhere else a margin is told from those
already asked: on one layout it is nearly linear in host layers and in what each value pulls.
"""

from __future__ import annotations

import math

import numpy as np

from autofit.search.dominance import demand, is_memory_param
from autofit.search.grid import Floats, Grid, Rows
from autofit.search.problem import Fit
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS

# How strongly a slope is held to nothing before estimates tell it.
_RIDGE = 1e-3
# How fast the nearest known point gains weight; the whole range of a value is 1.
_NEARNESS = 8.0
# A margin that stands for "no such candidate".
IMPOSSIBLE_MIB = -1e9


class MarginMap:
    """Exact margins where asked for, told ones elsewhere."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._places = [i for i, a in enumerate(grid.axes) if is_memory_param(a.name)]
        self._layout = grid.place(LAYOUT_AXIS)
        self._layers = grid.place(HOST_LAYERS_AXIS)
        self._exact: dict[int, float] = {}
        self._rows: dict[int, Rows] = {}
        self.needed_mib = 0.0
        self.has_estimates = False
        self._pulls = {place: self._pull(place) for place in self._places if place != self._layout}

    def is_exact(self, row: Rows) -> bool:
        """Whether the margin of a row has been estimated."""
        return self._code(row) in self._exact

    def _code(self, row: Rows) -> int:
        """What of a row decides its margin, as a number."""
        return int(self._grid.codes(row[None, :], self._places)[0])

    def estimate(self, row: Rows) -> float:
        """The estimated margin of a row of shape (axes,); nan where nothing estimates it."""
        code = self._code(row)
        if code not in self._exact:
            problem = self._grid.problem
            candidate = problem.candidate_of(self._grid.point_of(row))
            fit = problem.fit_of(candidate) if candidate is not None else None
            self._exact[code] = self._margin(fit, is_possible=candidate is not None)
            self._rows[code] = row.copy()
        return self._exact[code]

    def _margin(self, fit: Fit | None, *, is_possible: bool) -> float:
        if not is_possible:
            return IMPOSSIBLE_MIB
        if fit is None:
            return math.nan
        self.needed_mib = max(self.needed_mib, fit.needed_mib)
        self.has_estimates = True
        return fit.margin_mib

    def refresh(self) -> None:
        """Ask again for all that is known: launches may have corrected the estimates."""
        rows = list(self._rows.values())
        self._exact.clear()
        for row in rows:
            self.estimate(row)

    def ask_ends(self) -> None:
        """Estimate some of every layout with the first values, if not done before."""
        grid = self._grid
        if self._layers is None or self._layout is None:
            return
        most = len(grid.axes[self._layers].values) - 1
        for layout in range(len(grid.axes[self._layout].values)):
            for host_layers in (0, most // 2, most):
                row = np.zeros(len(grid.axes), dtype=np.int64)
                row[self._layout], row[self._layers] = layout, host_layers
                self.estimate(row)

    def margins(self, rows: Rows) -> Floats:
        """Margins of rows, of shape (rows,): exact where estimated, told elsewhere."""
        codes, first, back = np.unique(
            self._grid.codes(rows, self._places), return_index=True, return_inverse=True
        )
        distinct = rows[first]
        known = np.array(list(self._rows.values())).reshape(-1, len(self._grid.axes))
        values = np.array(list(self._exact.values()))
        told = (values > IMPOSSIBLE_MIB) & ~np.isnan(values)
        found = np.full(len(distinct), math.nan)
        layouts = self._layouts(distinct)
        for layout in np.unique(layouts):
            here = layouts == layout
            usable = told & (self._layouts(known) == layout)
            if usable.any():
                found[here] = self._told(distinct[here], known[usable], values[usable])
        exact = np.array(list(self._exact), dtype=np.int64)
        place = np.minimum(np.searchsorted(codes, exact), len(codes) - 1)
        hit = codes[place] == exact
        found[place[hit]] = values[hit]
        margins: Floats = found[back.reshape(-1)]
        return margins

    def _layouts(self, rows: Rows) -> Rows:
        if self._layout is None:
            return np.zeros(len(rows), dtype=np.int64)
        layouts: Rows = rows[:, self._layout]
        return layouts

    def _told(self, rows: Rows, known: Rows, values: Floats) -> Floats:
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
        columns = [np.ones(len(rows))]
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
