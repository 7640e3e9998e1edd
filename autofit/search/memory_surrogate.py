"""Margins of memory for thousands of points from a few estimates.

An estimate takes milliseconds, and a space has tens of thousands of points, so estimates are
asked for only where the answer decides something. Everywhere else a margin is told from those
already asked: on one layout it is nearly linear in host layers and in what each value pulls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from autofit.memory.demand import MEMORIES, Memory, demand, is_free
from autofit.memory.dominance import needing_at_least
from autofit.search.point_grid import Floats, Grid, Rows
from autofit.search.problem import Fit
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS

# How strongly a slope is held to nothing before estimates tell it.
_RIDGE = 1e-4
# How far a slope of one group may lie from what all have in common, beside its own size, as a
# share of the largest.
_LEAST_SPREAD = 0.02
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


class MemorySurrogate:
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

        After it is known whether anything can be estimated at all. A layout that cannot hold
        these even with all experts in system RAM is asked for with leaner ones: a single
        card that had no room for an f16 cache was never launched with any other.
        """
        grid = self._grid
        layers, layout = grid.place(HOST_LAYERS_AXIS), grid.place(LAYOUT_AXIS)
        if layers is None or layout is None:
            for row in grid.combinations(())[:1]:
                self.estimate(row)
            return
        most = len(grid.axes[layers].values) - 1
        for layout_place in range(len(grid.axes[layout].values)):
            row = np.zeros(len(grid.axes), dtype=np.int64)
            row[layout] = layout_place
            for host_layers in (most // 3, most):
                row[layers] = host_layers
                self.estimate(row)
            if layout_place == 0:
                for place, needs in self._kv_first:
                    farthest = int(np.argmax(np.abs(needs - needs[0])))
                    self.estimate(_changed(row, place, farthest))
            for place, needs in self._kv_first:
                if self._exact[self._code(row)][0] > IMPOSSIBLE_MIB:
                    break
                row = _changed(row, place, int(np.argmin(needs)))
                self.estimate(row)
            self._estimate_boundary(row, layers)

    def _estimate_boundary(self, row: Rows, layers: int) -> None:
        """Estimate where a row with fewer host layers is told to have no margin left.

        Of several devices the tightest counts, so margins bend between the ends: a line
        through them alone may be gigabytes too low where it matters.
        """
        walk = np.repeat(row[None, :], row[layers] + 1, axis=0)
        walk[:, layers] = np.arange(len(walk))
        fitting = np.flatnonzero(self.margins(walk, "device") >= 0)
        if len(fitting):
            self.estimate(walk[fitting[0]])

    @property
    def _kv_first(self) -> list[tuple[int, Floats]]:
        """The axes that ask for device memory, each with the demands of its values."""
        found = [
            (place, np.array([demand(axis.name, value) for value in axis.values]))
            for place, axis in enumerate(self._grid.axes)
            if axis.name != HOST_LAYERS_AXIS
        ]
        told = [(place, needs) for place, needs in found if not np.isnan(needs).any()]
        return sorted(told, key=lambda one: not is_free(self._grid.axes[one[0]].name, "host"))

    def margins(self, rows: Rows, memory: Memory) -> Floats:
        """Margins of rows, of shape (rows,): exact where estimated, told elsewhere."""
        codes, first, back = np.unique(
            self._grid.codes(rows, self._places), return_index=True, return_inverse=True
        )
        known = np.array(list(self._rows.values())).reshape(-1, len(self._grid.axes))
        values = np.array(list(self._exact.values())).reshape(-1, 2)[:, MEMORIES.index(memory)]
        found = self._lines[memory].told(rows[first], known, values)
        for row in known[values <= IMPOSSIBLE_MIB]:
            found[self._asks_as_much(rows[first], row)] = IMPOSSIBLE_MIB
        exact = np.array(list(self._exact), dtype=np.int64)
        place = np.minimum(np.searchsorted(codes, exact), len(codes) - 1)
        hit = codes[place] == exact
        found[place[hit]] = values[hit]
        margins: Floats = found[back.reshape(-1)]
        return margins

    def _asks_as_much(self, rows: Rows, refused: Rows) -> NDArray[np.bool_]:
        """Which rows no device can hold either: alike, with at least the demands of the refused.

        Fewer host layers may be possible where more are not, if there are not as many.
        """
        found = needing_at_least(self._grid.axes, rows, refused, "device")
        layers = self._grid.place(HOST_LAYERS_AXIS)
        if layers is not None:
            found &= rows[:, layers] == refused[layers]
        return found


class _Lines:
    """One line for each group of points, through what is known of the group."""

    def __init__(self, grid: Grid, memory: Memory) -> None:
        self._grid = grid
        self._memory = memory
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
        known, values = known[usable], values[usable]
        groups, known_groups = self._groups(rows), self._groups(known)
        common = self._common(known, values, known_groups)
        for group in np.unique(known_groups):
            here, there = groups == group, known_groups == group
            found[here] = self._line(rows[here], known[there], values[there], common)
        return found

    def _common(self, known: Rows, values: Floats, groups: Rows) -> Floats:
        """Slopes that all groups have in common, of shape (features,).

        Each group has a level and a slope in host layers of its own, or what layouts differ in
        most would be taken for the pull of a value that was tried on one of them only.
        """
        features = self._features(known)
        is_of = (groups[:, None] == np.unique(groups)[None, :]).astype(float)
        layers = self._layers_feature
        own = is_of if layers is None else np.hstack([is_of, is_of * features[:, [layers]]])
        shared = features.copy()
        shared[:, [0] if layers is None else [0, layers]] = 0.0
        columns = np.hstack([shared, own])
        gram = columns.T @ columns + _RIDGE * np.eye(columns.shape[1])
        found: Floats = np.linalg.solve(gram, columns.T @ values)
        slopes = found[: features.shape[1]].copy()
        if layers is not None and len(is_of):
            slopes[layers] = np.median(found[-is_of.shape[1] :])
        return slopes

    @property
    def _layers_feature(self) -> int | None:
        """Which feature is that of host layers, None where they are not searched."""
        before = 1
        for place, pull in self._pulls.items():
            if self._grid.axes[place].name == HOST_LAYERS_AXIS:
                return before
            before += pull.shape[1]
        return None

    def _groups(self, rows: Rows) -> Rows:
        return self._grid.codes(rows, self._grouping)

    def _line(self, rows: Rows, known: Rows, values: Floats, common: Floats) -> Floats:
        """Ridge regression on pulls, plus what it misses at the nearest known points.

        Each slope is held to what all groups have in common, the more the smaller that is: of
        two points that differ in everything most of the difference is that of host layers.
        """
        features, wanted = self._features(known), self._features(rows)
        missed = values - features @ common
        middle = missed.mean()
        spread = np.abs(common) / (np.abs(common).max() or 1.0) + _LEAST_SPREAD
        spread[0] = 1.0
        scaled = features * spread
        gram = scaled.T @ scaled + _RIDGE * np.eye(len(spread))
        weights = common + spread * np.linalg.solve(gram, scaled.T @ (missed - middle))
        missed = values - middle - features @ weights
        near = np.exp(-_NEARNESS * cdist(wanted, features, "cityblock"))
        correction = (near @ missed) / (near.sum(axis=1) + 1e-9)
        found: Floats = middle + wanted @ weights + correction + self._step(weights)
        return found

    def _step(self, weights: Floats) -> float:
        """What one host layer more leaves free: margins of devices are told that much too high.

        Layers are whole, so margins go in steps around the line. What is told too low is never
        asked for; what is told too high is, as soon as it matters.
        """
        feature, place = self._layers_feature, self._grid.place(HOST_LAYERS_AXIS)
        if feature is None or place is None or self._memory == "host":
            return 0.0
        return float(abs(weights[feature])) / max(1, len(self._grid.axes[place].values) - 1)

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


def _changed(row: Rows, place: int, value_place: int) -> Rows:
    other = row.copy()
    other[place] = value_place
    return other
