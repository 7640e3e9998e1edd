"""Cuts a model into one contiguous slice per device: an exact solver over bytes.

Pure arithmetic: it knows units with fixed bytes, layers with bytes that may move to the host,
budgets and overheads. A slice's fewest moved layers are those of its largest; slices are then
chosen by dynamic programming over devices and cut points, which tries every cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Overhead = tuple[tuple[int, int], tuple[int, int]]
_INFEASIBLE = float("inf")
_STEPS = 10  # halvings of the tightness of budgets
_LOOSEST = 1024.0

_Table = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceProblem:
    """What is to be cut, in bytes.

    `fixed` holds by unit what stays with it, the output layer last; `movable` by layer what
    can move to the host, 0 where nothing can. `overheads` are by device, then by whether the
    slice has the output layer, then by whether it keeps the movable part of some layer.
    With `is_ordered`, a slice's first layers are moved rather than its largest. The first device
    always has a slice, for its overhead is that of the first; others may go without.
    """

    fixed: tuple[int, ...]
    movable: tuple[int, ...]
    budgets: tuple[int, ...]
    overheads: tuple[Overhead, ...]
    is_ordered: bool = False


@dataclass(frozen=True, slots=True)
class Slices:
    """Units by device in order, and by device the layers whose movable part is on the host."""

    units: tuple[int, ...]
    hosted: tuple[tuple[int, ...], ...]

    @property
    def host_layers(self) -> tuple[int, ...]:
        """All layers whose movable part is on the host."""
        return tuple(sorted(layer for layers in self.hosted for layer in layers))


@dataclass(slots=True)
class SliceSolver:
    """Solves one problem in several ways; what all need is computed once.

    Tables are by first unit and unit after the last: `_whole` the bytes of a slice with
    nothing moved, `_freed` the bytes that moving its largest 0, 1, 2.. layers frees,
    `_all_freed` those that moving all of its layers does.
    """

    problem: SliceProblem
    _whole: _Table = field(init=False)
    _freed: _Table = field(init=False)
    _all_freed: _Table = field(init=False)
    _count: npt.NDArray[np.int64] = field(init=False)
    _fewest: list[Slices | None] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        problem = self.problem
        units, layers = len(problem.fixed), len(problem.movable)
        all_bytes = np.asarray(problem.fixed, dtype=np.float64)
        all_bytes[:layers] += problem.movable
        before = np.concatenate(([0.0], np.cumsum(all_bytes)))
        self._whole = before[None, :] - before[:, None]
        self._freed, self._count = _freed_by_slice(
            problem.movable, units, is_ordered=problem.is_ordered
        )
        self._all_freed = np.take_along_axis(self._freed, self._count[..., None], -1)[..., 0]

    @property
    def movable_layers(self) -> int:
        """How many layers have something that can move."""
        return sum(1 for nbytes in self.problem.movable if nbytes)

    def fewest(self) -> Slices | None:
        """The fewest hosted layers in all; among those, memory used most evenly."""
        if not self._fewest:
            self._fewest.append(self._capacity(1.0))
        return self._fewest[0]

    def fewest_within(self, hosted: int) -> Slices:
        """At least so many hosted layers, if there are as many, with the tightest budgets.

        All budgets are scaled alike, beyond 1 where it does not fit; layers beyond those
        needed are hosted where memory is fullest.
        """

        def attempt(tightness: float) -> Slices | None:
            found = self._capacity(tightness)
            return found if found and len(found.host_layers) <= hosted else None

        # One device alone holds whatever is asked for: nothing is to be found out.
        best = _tightest(attempt) if len(self.problem.budgets) > 1 else None
        best = best or self._all_on_first()
        return self._with_more(best, hosted)

    def spread(
        self, hosted: Sequence[int], targets: Sequence[float] | None = None
    ) -> Slices | None:
        """So many hosted layers on each device, and units as near to the targets as fit.

        Without targets, memory is used evenly.
        """
        return self._spread(hosted, 1.0, targets)

    def spread_tightly(
        self, hosted: Sequence[int], targets: Sequence[float] | None = None
    ) -> Slices | None:
        """So many hosted layers on each device with the tightest budgets they allow.

        With targets, budgets are scaled only where it does not fit. None where the model has
        too few layers for it.
        """
        if targets is not None:
            found = self._spread(hosted, 1.0, targets)
            if found:
                return found
        return _tightest(lambda tightness: self._spread(hosted, tightness, targets))

    def fits(self, slices: Slices) -> bool:
        """Whether every device has room for its slice."""
        starts = _starts(slices.units)
        return all(
            self.used_bytes(device, start, start + n, len(hosted)) <= budget
            for device, (start, n, hosted, budget) in enumerate(
                zip(starts, slices.units, slices.hosted, self.problem.budgets, strict=True)
            )
        )

    def used_bytes(self, device: int, start: int, end: int, hosted: int) -> float:
        """What a slice takes of its device when its largest layers are hosted."""
        if start == end:
            return 0.0
        has_output = end == len(self.problem.fixed)
        count = int(self._count[start, end])
        keeps = hosted < count or not count
        overhead = self.problem.overheads[device][has_output][keeps]
        return float(self._whole[start, end] - self._freed[start, end, hosted]) + overhead

    def _capacity(self, tightness: float) -> Slices | None:
        moved = [self._needed(device, tightness) for device in range(len(self.problem.budgets))]

        def costs(device: int) -> _Table:
            hosted = moved[device]
            used = self._used(device, hosted)
            evenness = np.square(used / max(1, self.problem.budgets[device]))
            # A hosted layer outweighs any unevenness.
            return hosted + evenness / (1e6 * max(1.0, tightness**2))

        units = self._cut(costs)
        if units is None:
            return None
        starts = _starts(units)
        counts = [
            int(moved[device][start, start + n]) if n else 0
            for device, (start, n) in enumerate(zip(starts, units, strict=True))
        ]
        return self._slices(units, counts)

    def _needed(self, device: int, tightness: float) -> _Table:
        """The fewest hosted layers by slice, infinite where not even all are enough."""
        bare, keeping = np.array(self.problem.overheads[device], dtype=np.float64).T
        # By unit after the last: only a slice that ends with the last unit has the output layer.
        has_output = (np.arange(self._whole.shape[1]) == len(self.problem.fixed)).astype(int)
        room = self._whole - self.problem.budgets[device] * tightness
        hosted = _first_reaching(self._freed, room + keeping[has_output])
        fits = self._all_freed >= room + bare[has_output]
        count = self._count
        keeps = np.where(count == 0, hosted == 0, hosted < count)
        needed = np.where(keeps, hosted, np.where(fits & (count > 0), count, _INFEASIBLE))
        np.fill_diagonal(needed, 0.0)
        needed[np.tril_indices_from(needed, -1)] = _INFEASIBLE
        return needed

    def _used(self, device: int, hosted: _Table) -> _Table:
        """Bytes taken by slice, for counts of hosted layers by slice."""
        counts = np.where(np.isfinite(hosted), hosted, 0).astype(np.int64)
        freed = np.take_along_axis(self._freed, counts[..., None], -1)[..., 0]
        (no_output, output) = self.problem.overheads[device]
        keeps = (counts < self._count) | (self._count == 0)
        overhead = np.where(keeps, no_output[1], no_output[0]).astype(np.float64)
        overhead[:, -1] = np.where(keeps[:, -1], output[1], output[0])
        used = self._whole - freed + overhead
        np.fill_diagonal(used, 0.0)
        return used

    def _spread(
        self, hosted: Sequence[int], tightness: float, targets: Sequence[float] | None
    ) -> Slices | None:
        units = len(self.problem.fixed)
        sizes = np.arange(units + 1)[None, :] - np.arange(units + 1)[:, None]

        def costs(device: int) -> _Table:
            counts = np.full(self._whole.shape, float(hosted[device]))
            used = self._used(device, np.minimum(counts, self._count))
            budget = self.problem.budgets[device]
            possible = (self._count >= hosted[device]) & (used <= budget * tightness)
            cost = np.square(used / max(1, budget))
            if targets is not None:
                cost = np.square(sizes - targets[device]) + cost / 1e6
            return np.where(possible & (sizes >= 0), cost, _INFEASIBLE)

        found = self._cut(costs)
        return None if found is None else self._slices(found, hosted)

    def _cut(self, costs: Callable[[int], _Table]) -> tuple[int, ...] | None:
        """The cut of least cost: units by device, None where there is none."""
        units = len(self.problem.fixed)
        best = np.full(units + 1, _INFEASIBLE)
        best[0] = 0.0
        choices = []
        for device in range(len(self.problem.budgets)):
            total = best[:, None] + costs(device)
            if not device:
                total[0, 0] = _INFEASIBLE
            choices.append(total.argmin(axis=0))
            best = total.min(axis=0)
        if not np.isfinite(best[units]):
            return None
        counts = []
        end = units
        for choice in reversed(choices):
            start = int(choice[end])
            counts.append(end - start)
            end = start
        return tuple(reversed(counts))

    def _slices(self, units: Sequence[int], counts: Sequence[int]) -> Slices:
        return Slices(
            tuple(units),
            tuple(
                self._largest(start, start + n, count)
                for start, n, count in zip(_starts(units), units, counts, strict=True)
            ),
        )

    def _largest(self, start: int, end: int, count: int) -> tuple[int, ...]:
        """The layers of a slice that are hosted first: the largest, then the first."""
        movable = self.problem.movable
        layers = [layer for layer in range(start, min(end, len(movable))) if movable[layer]]
        if not self.problem.is_ordered:
            layers.sort(key=lambda layer: (-movable[layer], layer))
        return tuple(sorted(layers[:count]))

    def _all_on_first(self) -> Slices:
        units = [len(self.problem.fixed), *[0] * (len(self.problem.budgets) - 1)]
        return self._slices(units, [0] * len(units))

    def _with_more(self, slices: Slices, hosted: int) -> Slices:
        """So many hosted layers, one after the other where memory is fullest."""
        counts = [len(layers) for layers in slices.hosted]
        starts = _starts(slices.units)
        limits = [
            int(self._count[start, start + n])
            for start, n in zip(starts, slices.units, strict=True)
        ]
        while sum(counts) < hosted:
            open_devices = [d for d, limit in enumerate(limits) if counts[d] < limit]
            if not open_devices:
                break
            fullest = max(
                open_devices,
                key=lambda d: (
                    self.used_bytes(d, starts[d], starts[d] + slices.units[d], counts[d])
                    / max(1, self.problem.budgets[d])
                ),
            )
            counts[fullest] += 1
        return self._slices(slices.units, counts)


# Settings and devices change what is fixed, not what can move: most problems share these.
@lru_cache(maxsize=8)
def _freed_by_slice(
    movable: tuple[int, ...], units: int, *, is_ordered: bool
) -> tuple[_Table, npt.NDArray[np.int64]]:
    """Bytes that moving 0, 1, 2.. layers of a slice frees, and how many layers it has to move."""
    layers = len(movable)
    ends = np.minimum(np.arange(units + 1), layers)
    moves = np.arange(layers + 1, dtype=np.float64)
    sizes = np.array(movable, dtype=np.float64)
    before = np.concatenate(([0], np.cumsum(sizes > 0)))[ends]
    counts = np.maximum(before[None, :] - before[:, None], 0)
    if is_ordered:
        total = np.concatenate(([0.0], np.cumsum(sizes[sizes > 0])))
        first = np.broadcast_to(before[:, None], counts.shape)
        last = first[..., None] + np.minimum(moves.astype(np.int64), counts[..., None])
        return total[last] - total[first][..., None], counts
    freed = np.zeros((units + 1, units + 1, layers + 1))
    larger = np.zeros(counts.shape)
    for size in sorted({size for size in movable if size}, reverse=True):
        seen = np.concatenate(([0], np.cumsum(sizes == size)))[ends]
        alike = np.maximum(seen[None, :] - seen[:, None], 0)
        freed += size * np.clip(moves - larger[..., None], 0.0, alike[..., None])
        larger += alike
    return freed, counts


def _first_reaching(rising: _Table, wanted: _Table) -> _Table:
    """Along the last axis, the index of the first entry that is no less than wanted.

    One past the last where none is.
    """
    depth = rising.shape[-1]
    begins = np.arange(wanted.size).reshape(wanted.shape) * depth
    low = np.zeros(wanted.shape, dtype=np.int64)
    high = np.full(wanted.shape, depth, dtype=np.int64)
    for _ in range(depth.bit_length()):
        middle = (low + high) // 2
        is_low = rising.take(begins + np.minimum(middle, depth - 1)) < wanted
        is_open = low < high
        low = np.where(is_open & is_low, middle + 1, low)
        high = np.where(is_open & ~is_low, middle, high)
    return low.astype(np.float64)


def _starts(units: Sequence[int]) -> list[int]:
    return [sum(units[:device]) for device in range(len(units))]


def _tightest(attempt: Callable[[float], Slices | None]) -> Slices | None:
    """What is found with the smallest scale of budgets."""
    high = 1.0
    found = attempt(high)
    while found is None and high < _LOOSEST:
        high *= 2
        found = attempt(high)
    if found is None:
        return None
    low = 0.0 if high == 1.0 else high / 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        closer = attempt(middle)
        if closer is None:
            low = middle
        else:
            found, high = closer, middle
    return found
