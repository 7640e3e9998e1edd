"""The points that a proposal chooses from, and how likely each is to fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from autofit.memory.demand import MEMORIES, Memory, is_free
from autofit.memory.dominance import needing_at_least, needing_at_most
from autofit.search.feasibility import BoundaryPosterior, EstimateBiasPosterior
from autofit.search.kernel import MINOR, Kernel
from autofit.search.memory_surrogate import IMPOSSIBLE_MIB, MemorySurrogate
from autofit.search.observations import History
from autofit.search.point_grid import Floats, Grid, Rows
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS
from autofit.search.success_probability import works

# Points less likely to fit than this are not worth a launch that probably fails; while
# nothing has run, less is enough.
_LEAST_CHANCE = 0.3
_LEAST_FIRST_CHANCE = 0.1
# What needs no more than something that ran fits as surely as anything does.
_SURE = 0.99
# What one crawl leaves of the chance: another program may have slowed it.
_CRAWLED_ONCE = 0.5
# What brings points no further apart than this share is looked at around the best ones alone.
# Threads are not: with them too, 15 instead of 18 of 20 searches found a winner within 2%.
_RARELY = 0.4
# Host layers looked at: so many above the fewest that may fit, and some of the rest, for on
# some machines experts in system RAM are faster.
_LAYERS_ABOVE = 4
_LAYERS_BEYOND = 3


class CandidatePool:
    """The points of one proposal with their chances to fit."""

    def __init__(
        self, grid: Grid, margins: MemorySurrogate, similarity: Kernel, history: History
    ) -> None:
        self._grid = grid
        self._margins = margins
        self._similarity = similarity
        self._history = history
        self._ran = history.matrix(
            [entry.row for entry in history.ran if entry.row not in history.fallen]
        )
        self._refused = history.refused()
        crawled = Counter(entry.row for entry in history.crawled)
        self._crawled = [(np.array(row), count > 1) for row, count in crawled.items()]
        margins.refresh()
        margins.ask_ends()
        for entry in history.entries:
            margins.estimate(np.array(entry.row))
        self._beliefs = {memory: self._learn(memory) for memory in MEMORIES}

    def _learn(self, memory: Memory) -> EstimateBiasPosterior | BoundaryPosterior | None:
        """What launches told of a memory; None where nothing is known that could be wrong."""
        told = [(row, True) for row in self._ran]
        told += [(row, False) for row in self._history.lacking(memory)]
        if memory == "device":
            told += [(row, False) for row, is_sure in self._crawled if is_sure]
        if not self._margins.has_estimates:
            if memory == "host":
                return None
            threshold = BoundaryPosterior(self._grid)
            for row, fitted in told:
                threshold.add_outcome(row, fitted=fitted)
            return threshold
        shift = EstimateBiasPosterior(memory, self._margins.needed_mib[memory])
        if told:
            margins = self._margins.margins(np.array([row for row, _ in told]), memory)
            for margin, (_, fitted) in zip(margins, told, strict=True):
                if margin > IMPOSSIBLE_MIB:
                    shift.add_outcome(float(margin), fitted=fitted)
        return shift

    @property
    def least_chance(self) -> float:
        """Below which a point is not worth a launch."""
        return _LEAST_CHANCE if len(self._ran) else _LEAST_FIRST_CHANCE

    def chances(self, rows: Rows) -> Floats:
        """How likely rows are to run, of shape (rows,); 0 for those that failed or must."""
        found = self._memory_chances(rows)
        every = range(len(self._grid.axes))
        gone = self._grid.codes(self._refused, every)
        found[np.isin(self._grid.codes(rows, every), gone)] = 0.0
        return found * works(rows, self._refused, self._ran, self._similarity)

    def _memory_chances(self, rows: Rows) -> Floats:
        found = np.ones(len(rows))
        for memory in MEMORIES:
            chances = self._estimated(rows, memory)
            for row in self._ran:
                fits = needing_at_most(self._grid.axes, rows, row, memory)
                chances[fits] = np.maximum(chances[fits], _SURE)
            for row in self._history.lacking(memory):
                chances[needing_at_least(self._grid.axes, rows, row, memory)] = 0.0
            found *= chances
        for row, is_sure in self._crawled:
            crowded = needing_at_least(self._grid.axes, rows, row, "device")
            found[crowded] *= 0.0 if is_sure else _CRAWLED_ONCE
        return found

    def _estimated(self, rows: Rows, memory: Memory) -> Floats:
        belief = self._beliefs[memory]
        if belief is None:
            return np.ones(len(rows))
        if isinstance(belief, BoundaryPosterior):
            return belief.probability(rows)
        margins = self._margins.margins(rows, memory)
        found = belief.probability(np.nan_to_num(margins, nan=0.0))
        found[np.isnan(margins)] = 0.5 if memory == "device" else 1.0
        found[margins <= IMPOSSIBLE_MIB] = 0.0
        return found

    def rows(self) -> Rows:
        """The points worth judging: all, or those near the fit boundary of each layout.

        Of those that differ in what seldom matters only the one that is most like the launch
        before: `variants` has the others.
        """
        combinations = self._grid.combinations(self._ran[-3:].tolist())
        layers, layout = self._grid.place(HOST_LAYERS_AXIS), self._grid.place(LAYOUT_AXIS)
        if not self._grid.problem.searches_layouts or layers is None or layout is None:
            return combinations
        combinations = self._alike_in_minor(combinations)
        places = [
            place
            for place, axis in enumerate(self._grid.axes)
            if place not in (layers, layout)
            and not all(is_free(axis.name, memory) for memory in MEMORIES)
        ]
        codes = self._grid.codes(combinations, places)
        alike = [combinations[codes == code] for code in np.unique(codes)]
        found = []
        for key, layout_place, host_layers in self._near_boundary([rows[0] for rows in alike]):
            rows = alike[key].copy()
            rows[:, layout], rows[:, layers] = layout_place, host_layers
            found.append(rows)
        return np.concatenate(found) if found else combinations[:0]

    def variants(self, rows: Rows) -> Rows:
        """The rows and those that differ from them only in what seldom matters."""
        minor = self._minor
        if not minor:
            return rows
        combinations = self._grid.combinations(self._ran[-3:].tolist())
        kept = [place for place in self._kept if place not in minor]
        codes, wanted = self._grid.codes(combinations, kept), self._grid.codes(rows, kept)
        found = [rows]
        for row, code in zip(rows, wanted, strict=True):
            others = np.repeat(row[None, :], np.count_nonzero(codes == code), axis=0)
            others[:, minor] = combinations[codes == code][:, minor]
            found.append(others)
        return np.unique(np.concatenate(found), axis=0)

    def _alike_in_minor(self, combinations: Rows) -> Rows:
        """One of those that differ in what seldom matters: the most like the last launch."""
        minor = self._minor
        wanted = self._ran[-1] if len(self._ran) else np.zeros(len(self._grid.axes), np.int64)
        codes = self._grid.codes(combinations, [p for p in self._kept if p not in minor])
        unlike = (combinations[:, minor] != wanted[minor]).sum(axis=1)
        order = np.lexsort((unlike, codes))
        _, first = np.unique(codes[order], return_index=True)
        return combinations[np.sort(order[first])]

    @property
    def _minor(self) -> list[int]:
        """Axes that hardly ever matter and take no memory."""
        return [
            place for place in self._kept if MINOR.get(self._grid.axes[place].name, 1) < _RARELY
        ]

    @property
    def _kept(self) -> list[int]:
        """All axes apart from layout and host layers where these are combined with any point."""
        names = (LAYOUT_AXIS, HOST_LAYERS_AXIS) if self._grid.problem.searches_layouts else ()
        return [place for place, axis in enumerate(self._grid.axes) if axis.name not in names]

    def _near_boundary(self, firsts: Sequence[Rows]) -> Iterator[tuple[int, int, int]]:
        """Which host layers are worth a look, as places of first row, layout and layers."""
        axes = self._grid.axes
        layers, layout = self._grid.place(HOST_LAYERS_AXIS), self._grid.place(LAYOUT_AXIS)
        if layers is None or layout is None:
            return
        shape = (len(firsts), len(axes[layout].values), len(axes[layers].values))
        walks = np.empty((*shape, len(axes)), dtype=np.int64)
        walks[:] = np.array(firsts)[:, None, None, :]
        walks[..., layout] = np.arange(shape[1])[None, :, None]
        walks[..., layers] = np.arange(shape[2])
        chances = self._memory_chances(walks.reshape(-1, len(axes))).reshape(shape)
        # Estimates may be wrong altogether: where none is likely, the likeliest are kept.
        least = min(self.least_chance, float(chances.max()))
        for key, layout_place in np.ndindex(shape[:2]):
            likely = np.flatnonzero(chances[key, layout_place] >= least)
            near, rest = likely[:_LAYERS_ABOVE], likely[_LAYERS_ABOVE:]
            if len(rest) > _LAYERS_BEYOND:
                rest = rest[np.linspace(0, len(rest) - 1, _LAYERS_BEYOND + 1).astype(int)[1:]]
            for host_layers in (*near, *rest):
                yield key, layout_place, int(host_layers)
