"""The points that a proposal chooses from, and the probability that each of them runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from autofit.memory.demand import MEMORIES, Memory, is_free
from autofit.search.feasibility import BoundaryPosterior, EstimateBiasPosterior
from autofit.search.kernel import MINOR_AXIS_WEIGHTS, Kernel
from autofit.search.memory_surrogate import IMPOSSIBLE_MIB, MemorySurrogate
from autofit.search.observations import LaunchHistory
from autofit.search.point_grid import Floats, PointGrid, Rows
from autofit.search.refusals import probability_without_refusal
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS

# A point less likely to run is not worth a launch. Before anything has run, less is enough.
_MIN_PROBABILITY = 0.3
_MIN_FIRST_PROBABILITY = 0.1
# The least probability of a point that needs no more memory than one that ran.
_DOMINATED_PROBABILITY = 0.99
# Factor on points that need at least as much as a suspected spill that was seen once: another
# program may have been the cause.
_SPILLED_ONCE = 0.5
# Axes with a smaller kernel weight are varied only around the best points.
_MINOR_WEIGHT = 0.6
# Numbers of host layers in the pool of each layout: the fewest that may fit, and some of the
# rest, since on some machines experts in system RAM are faster.
_LAYERS_AT_BOUNDARY = 4
_LAYERS_BEYOND = 3
# The last launches whose neighbours are listed if there are too many combinations.
_RECENT_LAUNCHES = 3


class CandidatePool:
    """The points of one proposal, with their probabilities of success."""

    def __init__(
        self,
        grid: PointGrid,
        memory_surrogate: MemorySurrogate,
        kernel: Kernel,
        history: LaunchHistory,
    ) -> None:
        self._grid = grid
        self._memory_surrogate = memory_surrogate
        self._kernel = kernel
        self._history = history
        self._ran = history.matrix(
            [one.row for one in history.ran if one.row not in history.failed_proof]
        )
        self._failed_otherwise = history.failed_otherwise
        spills = Counter(one.row for one in history.spilled)
        self._spills = [(np.array(row), count > 1) for row, count in spills.items()]
        memory_surrogate.refresh()
        memory_surrogate.estimate_ends()
        for one in history.launches:
            memory_surrogate.estimate(np.array(one.row))
        self._fit_posteriors = {memory: self._fit_posterior(memory) for memory in MEMORIES}

    def _fit_posterior(self, memory: Memory) -> EstimateBiasPosterior | BoundaryPosterior | None:
        """Return the posterior of what fits, or None for a host memory without estimates."""
        outcomes = [(row, True) for row in self._ran]
        outcomes += [(row, False) for row in self._history.out_of_memory(memory)]
        if memory == "device":
            outcomes += [(row, False) for row, is_repeated in self._spills if is_repeated]
        if not self._memory_surrogate.has_estimates:
            if memory == "host":
                return None
            boundary = BoundaryPosterior(self._grid)
            for row, fitted in outcomes:
                boundary.add_outcome(row, fitted=fitted)
            return boundary
        bias = self._bias_before(memory)
        if outcomes:
            rows = np.array([row for row, _ in outcomes])
            margins = self._memory_surrogate.margins(rows, memory)
            for margin, (_, fitted) in zip(margins, outcomes, strict=True):
                if margin > IMPOSSIBLE_MIB:
                    bias.add_outcome(float(margin), fitted=fitted)
        return bias

    def _bias_before(self, memory: Memory) -> EstimateBiasPosterior:
        """Return what is known of the bias before any launch of this study."""
        bias = EstimateBiasPosterior(memory, self._memory_surrogate.needed_mib[memory])
        for study in self._grid.problem.past_studies if memory == "device" else ():
            for margins_mib, fitted in (
                (study.fitting_margins_mib, True),
                (study.failing_margins_mib, False),
            ):
                for margin_mib in margins_mib:
                    bias.add_outcome(margin_mib, fitted=fitted)
            bias.as_prior()
        return bias

    @property
    def min_probability(self) -> float:
        """The probability of success below which a point is not worth a launch."""
        return _MIN_PROBABILITY if len(self._ran) else _MIN_FIRST_PROBABILITY

    def success_probabilities(self, rows: Rows) -> Floats:
        """Return the probability that rows run, of shape (rows,), or 0 for rows that must fail."""
        probabilities = self._memory_probabilities(rows)
        columns = range(len(self._grid.axes))
        failed = self._grid.codes(
            self._history.matrix([one.row for one in self._failed_otherwise]), columns
        )
        probabilities[np.isin(self._grid.codes(rows, columns), failed)] = 0.0
        return probabilities * probability_without_refusal(
            self._grid, self._kernel, rows, self._failed_otherwise, self._ran
        )

    def _memory_probabilities(self, rows: Rows) -> Floats:
        """Return the probability that rows fit into both memories, of shape (rows,)."""
        product = np.ones(len(rows))
        for memory in MEMORIES:
            probabilities = self._predicted_probabilities(rows, memory)
            for row in self._ran:
                # A point without a candidate stays at 0.
                fits = self._grid.needing_at_most(memory, rows, row) & (probabilities > 0)
                probabilities[fits] = np.maximum(probabilities[fits], _DOMINATED_PROBABILITY)
            for row in self._history.out_of_memory(memory):
                probabilities[self._grid.needing_at_least(memory, rows, row)] = 0.0
            product *= probabilities
        for row, is_repeated in self._spills:
            dominated = self._grid.needing_at_least("device", rows, row)
            product[dominated] *= 0.0 if is_repeated else _SPILLED_ONCE
        return product

    def _predicted_probabilities(self, rows: Rows, memory: Memory) -> Floats:
        posterior = self._fit_posteriors[memory]
        if posterior is None:
            return np.ones(len(rows))
        if isinstance(posterior, BoundaryPosterior):
            return posterior.probability(rows)
        margins = self._memory_surrogate.margins(rows, memory)
        probabilities = posterior.probability(np.nan_to_num(margins, nan=0.0))
        probabilities[np.isnan(margins)] = 0.5 if memory == "device" else 1.0
        probabilities[margins <= IMPOSSIBLE_MIB] = 0.0
        return probabilities

    def rows(self) -> Rows:
        """Return the points to evaluate: all, or those near the fit boundary of each layout.

        Of points that differ in minor axes only, it returns the one most similar to the last
        launch. `variants` returns the others.
        """
        combinations = self._combinations()
        layers, layout = self._grid.column_of(HOST_LAYERS_AXIS), self._grid.column_of(LAYOUT_AXIS)
        if not self._grid.problem.searches_layouts or layers is None or layout is None:
            return combinations
        combinations = self._without_minor_variants(combinations)
        columns = [
            column
            for column, axis in enumerate(self._grid.axes)
            if column not in (layers, layout)
            and not all(is_free(axis.name, memory) for memory in MEMORIES)
        ]
        # Combinations of one group need the same memory, so they share a fit boundary.
        codes = self._grid.codes(combinations, columns)
        groups = [combinations[codes == code] for code in np.unique(codes)]
        found = []
        for group, layout_index, host_layers in self._near_boundary([rows[0] for rows in groups]):
            rows = groups[group].copy()
            rows[:, layout], rows[:, layers] = layout_index, host_layers
            found.append(rows)
        rows = np.concatenate(found) if found else combinations[:0]
        return rows[self._grid.sets_only_what_acts(rows)]

    def variants(self, rows: Rows) -> Rows:
        """Return the rows and all points that differ from one of them in minor axes only."""
        minor = self._minor_columns
        if not minor:
            return rows
        combinations = self._combinations()
        major = [column for column in self._combined_columns if column not in minor]
        codes, row_codes = self._grid.codes(combinations, major), self._grid.codes(rows, major)
        found = [rows]
        for row, code in zip(rows, row_codes, strict=True):
            others = np.repeat(row[None, :], np.count_nonzero(codes == code), axis=0)
            others[:, minor] = combinations[codes == code][:, minor]
            found.append(others)
        rows = np.unique(np.concatenate(found), axis=0)
        return rows[self._grid.sets_only_what_acts(rows)]

    def _combinations(self) -> Rows:
        return self._grid.combinations(self._ran[-_RECENT_LAUNCHES:].tolist())

    def _without_minor_variants(self, combinations: Rows) -> Rows:
        """Return one of the combinations that differ in minor axes: the most similar to the last.

        Similar means that fewer minor values differ from those of the last launch that ran.
        """
        minor = self._minor_columns
        last = self._ran[-1] if len(self._ran) else np.zeros(len(self._grid.axes), np.int64)
        major = [column for column in self._combined_columns if column not in minor]
        codes = self._grid.codes(combinations, major)
        differences = (combinations[:, minor] != last[minor]).sum(axis=1)
        order = np.lexsort((differences, codes))
        _, first = np.unique(codes[order], return_index=True)
        return combinations[np.sort(order[first])]

    @property
    def _minor_columns(self) -> list[int]:
        """Columns of axes that rarely matter and need no memory."""
        return [
            column
            for column in self._combined_columns
            if MINOR_AXIS_WEIGHTS.get(self._grid.axes[column].name, 1) < _MINOR_WEIGHT
        ]

    @property
    def _combined_columns(self) -> list[int]:
        """Columns of the combinations: all but layout and host layers, if these are searched."""
        has_layouts = self._grid.problem.searches_layouts
        names = (LAYOUT_AXIS, HOST_LAYERS_AXIS) if has_layouts else ()
        return [column for column, axis in enumerate(self._grid.axes) if axis.name not in names]

    def _near_boundary(self, groups: Sequence[Rows]) -> Iterator[tuple[int, int, int]]:
        """Yield the numbers of host layers to evaluate, as indices of group, layout and layers.

        Args:
            groups: one row of each group of combinations.
        """
        axes = self._grid.axes
        layers, layout = self._grid.column_of(HOST_LAYERS_AXIS), self._grid.column_of(LAYOUT_AXIS)
        if layers is None or layout is None:
            return
        shape = (len(groups), len(axes[layout].values), len(axes[layers].values))
        points = np.empty((*shape, len(axes)), dtype=np.int64)
        points[:] = np.array(groups)[:, None, None, :]
        points[..., layout] = np.arange(shape[1])[None, :, None]
        points[..., layers] = np.arange(shape[2])
        probabilities = self._memory_probabilities(points.reshape(-1, len(axes))).reshape(shape)
        # Estimates may be entirely wrong. If no point is likely enough, the likeliest are kept.
        least = min(self.min_probability, float(probabilities.max()))
        for group, layout_index in np.ndindex(shape[:2]):
            likely = np.flatnonzero(probabilities[group, layout_index] >= least)
            near, rest = likely[:_LAYERS_AT_BOUNDARY], likely[_LAYERS_AT_BOUNDARY:]
            if len(rest) > _LAYERS_BEYOND:
                rest = rest[np.linspace(0, len(rest) - 1, _LAYERS_BEYOND + 1).astype(int)[1:]]
            for host_layers in (*near, *rest):
                yield group, layout_index, int(host_layers)
