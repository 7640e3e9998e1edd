"""The memory surrogate: margins of thousands of points, interpolated from a few predictions.

A memory prediction takes milliseconds, and a space has tens of thousands of points. So
predictions are requested only where a decision depends on them. All other margins are estimated
by ridge regression on those: on one layout a margin is nearly linear in the number of host
layers and in the demand of each other setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.spatial.distance import cdist

from autofit.memory.demand import MEMORIES, Memory, demand, is_free
from autofit.memory.dominance import needing_at_least
from autofit.search.point_grid import Floats, PointGrid, Rows
from autofit.search.problem import Fit
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS

# The ridge penalty.
_RIDGE = 1e-4
# Prior deviation of the slopes of a group from the common slopes: proportional to the common
# slope, plus this share of the largest.
_MIN_SLOPE_SD = 0.02
# Decay of the weights of known points with distance; the range of each setting is 1.
_DISTANCE_DECAY = 8.0
# The margin of a point without a candidate.
IMPOSSIBLE_MIB = -1e9
# Points with equal values here form a group with a regression of its own: the layout, and for
# host memory also whether weights are mapped.
_GROUP_AXES: dict[Memory, tuple[str, ...]] = {
    "device": (LAYOUT_AXIS,),
    "host": (LAYOUT_AXIS, "load_mode"),
}


class MemorySurrogate:
    """Margins of both memories: exact where they were predicted, else estimated.

    Attributes:
        needed_mib: by memory, the most that any prediction needs.
    """

    def __init__(self, grid: PointGrid) -> None:
        self._grid = grid
        self._columns = [
            column
            for column, axis in enumerate(grid.axes)
            if not all(is_free(axis.name, memory) for memory in MEMORIES)
        ]
        self._exact: dict[int, tuple[float, float]] = {}
        self._rows: dict[int, Rows] = {}
        self.needed_mib = dict.fromkeys(MEMORIES, 0.0)
        self._regressions = {memory: _MarginRegression(grid, memory) for memory in MEMORIES}

    @property
    def has_estimates(self) -> bool:
        """True if at least one prediction was available."""
        return self.needed_mib["device"] > 0

    def is_exact(self, row: Rows) -> bool:
        """Return whether the margins of a row have been predicted."""
        return self._code(row) in self._exact

    def _code(self, row: Rows) -> int:
        """Return an integer that is equal for rows that need the same memory."""
        return int(self._grid.codes(row[None, :], self._columns)[0])

    def estimate(self, row: Rows) -> None:
        """Request the prediction of a row of shape (axes,), unless it is known."""
        code = self._code(row)
        if code not in self._exact:
            problem = self._grid.problem
            candidate = problem.candidate_of(self._grid.point_of(row))
            fit = problem.fit_of(candidate) if candidate is not None else None
            self._exact[code] = self._margins_of(fit, is_possible=candidate is not None)
            self._rows[code] = row.copy()

    def _margins_of(self, fit: Fit | None, *, is_possible: bool) -> tuple[float, float]:
        if not is_possible:
            return IMPOSSIBLE_MIB, math.nan
        if fit is None:
            return math.nan, math.nan
        needed = {"device": fit.needed_mib, "host": fit.host_needed_mib}
        for memory in MEMORIES:
            self.needed_mib[memory] = max(self.needed_mib[memory], needed[memory])
        return fit.margin_mib, fit.host_margin_mib

    def refresh(self) -> None:
        """Request all known predictions again: launches may have calibrated them."""
        rows = list(self._rows.values())
        self._exact.clear()
        for row in rows:
            self.estimate(row)

    def estimate_ends(self) -> None:
        """Request predictions of a few points of every layout, unless they are known.

        They show whether there are predictions at all. If a layout has no candidate with the
        first values even with all experts in system RAM, values with a smaller demand are
        tried. Otherwise a card without room for an f16 cache would never be launched with any
        other.
        """
        grid = self._grid
        layers, layout = grid.column_of(HOST_LAYERS_AXIS), grid.column_of(LAYOUT_AXIS)
        if layers is None or layout is None:
            for row in grid.combinations(())[:1]:
                self.estimate(row)
            return
        most = len(grid.axes[layers].values) - 1
        for layout_index in range(len(grid.axes[layout].values)):
            row = np.zeros(len(grid.axes), dtype=np.int64)
            row[layout] = layout_index
            for host_layers in (most // 3, most):
                row[layers] = host_layers
                self.estimate(row)
            if layout_index == 0:
                for column, demands in self._device_demands:
                    farthest = int(np.argmax(np.abs(demands - demands[0])))
                    self.estimate(_with_index(row, column, farthest))
            for column, demands in self._device_demands:
                if self._exact[self._code(row)][0] > IMPOSSIBLE_MIB:
                    break
                row = _with_index(row, column, int(np.argmin(demands)))
                self.estimate(row)
            self._estimate_boundary(row, layers)

    def _estimate_boundary(self, row: Rows, layers: int) -> None:
        """Request the prediction at the expected fit boundary of a row.

        The margin is that of the tightest of several devices, so it bends between the ends. A
        straight line through the ends may be gigabytes too low at the boundary.
        """
        line = np.repeat(row[None, :], row[layers] + 1, axis=0)
        line[:, layers] = np.arange(len(line))
        fitting = np.flatnonzero(self.margins(line, "device") >= 0)
        if len(fitting):
            self.estimate(line[fitting[0]])

    @property
    def _device_demands(self) -> list[tuple[int, Floats]]:
        """Columns of settings with a known demand of device memory, with their values' demands.

        Settings that do not change host memory come first.
        """
        found = [
            (column, np.array([demand(axis.name, value) for value in axis.values]))
            for column, axis in enumerate(self._grid.axes)
            if axis.name != HOST_LAYERS_AXIS
        ]
        known = [(column, demands) for column, demands in found if not np.isnan(demands).any()]
        return sorted(known, key=lambda one: not is_free(self._grid.axes[one[0]].name, "host"))

    def margins(self, rows: Rows, memory: Memory) -> Floats:
        """Return the margins of rows in MiB, of shape (rows,), or nan if they are unknown."""
        codes, first, back = np.unique(
            self._grid.codes(rows, self._columns), return_index=True, return_inverse=True
        )
        known = np.array(list(self._rows.values())).reshape(-1, len(self._grid.axes))
        values = np.array(list(self._exact.values())).reshape(-1, 2)[:, MEMORIES.index(memory)]
        found = self._regressions[memory].predict(rows[first], known, values)
        self._mark_impossible(rows[first], known[values <= IMPOSSIBLE_MIB], found)
        exact = np.array(list(self._exact), dtype=np.int64)
        index = np.minimum(np.searchsorted(codes, exact), len(codes) - 1)
        is_known = codes[index] == exact
        found[index[is_known]] = values[is_known]
        margins: Floats = found[back.reshape(-1)]
        return margins

    def _mark_impossible(self, rows: Rows, impossible: Rows, margins: Floats) -> None:
        """Change the margins of rows that have no candidate, given others that have none.

        They need at least as much device memory and have the same layout and number of host
        layers. With fewer host layers there may be a candidate, if the model has no more layers.
        """
        columns = [
            column
            for name in (LAYOUT_AXIS, HOST_LAYERS_AXIS)
            if (column := self._grid.column_of(name)) is not None
        ]
        codes = self._grid.codes(rows, columns)
        for row, code in zip(impossible, self._grid.codes(impossible, columns), strict=True):
            same = np.flatnonzero(codes == code)
            needs_more = needing_at_least(self._grid.demands["device"], rows[same], row)
            margins[same[needs_more]] = IMPOSSIBLE_MIB


class _MarginRegression:
    """The regression of one memory's margins on settings, with one line for each group.

    A feature is the demand of a setting, scaled to 0..1. A setting of unknown demand has one
    feature for each value. The first feature is the constant 1.
    """

    def __init__(self, grid: PointGrid, memory: Memory) -> None:
        self._grid = grid
        self._memory = memory
        axes = [(column, axis.name) for column, axis in enumerate(grid.axes)]
        self._group_columns = [column for column, name in axes if name in _GROUP_AXES[memory]]
        self._value_features = {
            column: self._features_of_values(column)
            for column, name in axes
            if column not in self._group_columns and not is_free(name, memory)
        }

    def predict(self, rows: Rows, known: Rows, values: Floats) -> Floats:
        """Return the margins of rows from those of known rows, or nan if the group has none."""
        found = np.full(len(rows), math.nan)
        is_usable = (values > IMPOSSIBLE_MIB) & ~np.isnan(values)
        known, values = known[is_usable], values[is_usable]
        groups, known_groups = self._groups(rows), self._groups(known)
        common = self._common_slopes(known, values, known_groups)
        for group in np.unique(known_groups):
            here, there = groups == group, known_groups == group
            found[here] = self._predict_group(rows[here], known[there], values[there], common)
        return found

    def _common_slopes(self, known: Rows, values: Floats, groups: Rows) -> Floats:
        """Return the slopes that all groups share, of shape (features,).

        Each group has a constant and a slope of host layers of its own. Otherwise the largest
        differences between layouts would be attributed to a value that was tried on one of
        them only.
        """
        features = self._features(known)
        is_of = (groups[:, None] == np.unique(groups)[None, :]).astype(float)
        layers = self._layers_feature
        own = is_of if layers is None else np.hstack([is_of, is_of * features[:, [layers]]])
        shared = features.copy()
        shared[:, [0] if layers is None else [0, layers]] = 0.0
        columns = np.hstack([shared, own])
        gram = columns.T @ columns + _RIDGE * np.eye(columns.shape[1])
        solution: Floats = np.linalg.solve(gram, columns.T @ values)
        slopes = solution[: features.shape[1]].copy()
        if layers is not None and len(is_of):
            slopes[layers] = np.median(solution[-is_of.shape[1] :])
        return slopes

    @property
    def _layers_feature(self) -> int | None:
        """The index of the feature of host layers, or None if these are not searched."""
        index = 1
        for column, features in self._value_features.items():
            if self._grid.axes[column].name == HOST_LAYERS_AXIS:
                return index
            index += features.shape[1]
        return None

    def _groups(self, rows: Rows) -> Rows:
        return self._grid.codes(rows, self._group_columns)

    def _predict_group(self, rows: Rows, known: Rows, values: Floats, common: Floats) -> Floats:
        """Return margins by ridge regression, plus its residuals at the nearest known points.

        The prior means of the slopes are the common slopes, with deviations in proportion to
        them. So of two points that differ in every setting, most of the difference is
        attributed to host layers.
        """
        features, row_features = self._features(known), self._features(rows)
        residuals = values - features @ common
        middle = residuals.mean()
        sds = np.abs(common) / (np.abs(common).max() or 1.0) + _MIN_SLOPE_SD
        sds[0] = 1.0
        scaled = features * sds
        gram = scaled.T @ scaled + _RIDGE * np.eye(len(sds))
        slopes = common + sds * np.linalg.solve(gram, scaled.T @ (residuals - middle))
        residuals = values - middle - features @ slopes
        nearness = np.exp(-_DISTANCE_DECAY * cdist(row_features, features, "cityblock"))
        correction = (nearness @ residuals) / (nearness.sum(axis=1) + 1e-9)
        margins: Floats = middle + row_features @ slopes + correction + self._layer_mib(slopes)
        return margins

    def _layer_mib(self, slopes: Floats) -> float:
        """Return the memory of one host layer, which is added to estimated device margins.

        Layers are whole, so true margins are steps around the line. A margin that is estimated
        too low is never predicted. One that is too high is, as soon as it matters.
        """
        feature, column = self._layers_feature, self._grid.column_of(HOST_LAYERS_AXIS)
        if feature is None or column is None or self._memory == "host":
            return 0.0
        return float(abs(slopes[feature])) / max(1, len(self._grid.axes[column].values) - 1)

    def _features(self, rows: Rows) -> Floats:
        columns: list[Sequence[float] | Floats] = [np.ones(len(rows))]
        for column, features in self._value_features.items():
            columns.extend(features[rows[:, column]].T)
        return np.stack(columns, axis=1)

    def _features_of_values(self, column: int) -> Floats:
        """Return the features of each value of a setting, of shape (values, features)."""
        axis = self._grid.axes[column]
        demands = np.array([demand(axis.name, value) for value in axis.values])
        if np.isnan(demands).any():
            return np.eye(len(axis.values))
        low, high = demands.min(), demands.max()
        scaled: Floats = (demands - low)[:, None] / ((high - low) or 1.0)
        return scaled


def _with_index(row: Rows, column: int, index: int) -> Rows:
    other = row.copy()
    other[column] = index
    return other
