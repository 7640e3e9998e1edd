"""An exact solver that cuts a model into one contiguous slice per device.

It knows only bytes: units with fixed bytes, layers with bytes that can move to the host, budgets
and overheads. The fewest layers to move from a slice are its largest ones. Dynamic programming
over devices and cut points then considers every cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Overhead = tuple[tuple[int, int], tuple[int, int]]
_INFEASIBLE = float("inf")
_STEPS = 10  # bisections of the scale of budgets
_LARGEST_SCALE = 1024.0

_Table = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceProblem:
    """A model to cut; all sizes are in bytes.

    `fixed` is what stays with each unit, the output layer last. `movable` is what can move to
    the host from each layer. `overheads` are indexed by device, then by whether the slice has
    the output layer, then by whether it keeps the movable part of some layer. With `is_ordered`
    the first layers of a slice move instead of the largest. The first device always has a
    slice, because its overhead is special; others can have none.
    """

    fixed: tuple[int, ...]
    movable: tuple[int, ...]
    budgets: tuple[int, ...]
    overheads: tuple[Overhead, ...]
    is_ordered: bool = False


@dataclass(frozen=True, slots=True)
class Slices:
    """The units of each device, and its hosted layers, whose movable part is on the host."""

    units: tuple[int, ...]
    hosted: tuple[tuple[int, ...], ...]

    @property
    def host_layers(self) -> tuple[int, ...]:
        """The hosted layers of all devices."""
        return tuple(sorted(layer for layers in self.hosted for layer in layers))


@dataclass(slots=True)
class SliceSolver:
    """A solver of one problem by several criteria.

    Tables are indexed by the first unit of a slice and the unit after its last. `_whole` is
    the bytes of a slice without hosted layers. `_freed` is the bytes freed by 0, 1, 2 and more
    hosted layers, `_all_freed` by all of them. `_count` is the number of layers that can move.
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
        """Number of layers with a movable part."""
        return sum(1 for nbytes in self.problem.movable if nbytes)

    def minimize_hosted(self) -> Slices | None:
        """Return the slices with the fewest hosted layers, then the most even memory use."""
        if not self._fewest:
            self._fewest.append(self._capacity(1.0))
        return self._fewest[0]

    def tightest(self, hosted: int) -> Slices:
        """Return the slices for the smallest budgets that fit, all scaled by one factor.

        They have `hosted` layers on the host if that is possible. The factor is above 1 if the
        model does not fit the real budgets. Host layers that the slices do not need are taken
        from the devices with the fullest memory.
        """

        def attempt(scale: float) -> Slices | None:
            found = self._capacity(scale)
            return found if found and len(found.host_layers) <= hosted else None

        # A single device needs no search.
        best = _smallest_scale(attempt) if len(self.problem.budgets) > 1 else None
        if best is None:
            units = [len(self.problem.fixed), *[0] * (len(self.problem.budgets) - 1)]
            best = self._slices(units, [0] * len(units))
        return self._host_more(best, hosted)

    def spread(
        self, hosted: Sequence[int], targets: Sequence[float] | None = None
    ) -> Slices | None:
        """Return slices in which each device has a given number of hosted layers.

        The units come as close to the targets as the budgets allow; without targets memory is
        used evenly. Returns None if nothing fits.
        """
        return self._spread(hosted, 1.0, targets)

    def spread_tightest(
        self, hosted: Sequence[int], targets: Sequence[float] | None = None
    ) -> Slices | None:
        """Return slices with given numbers of hosted layers, for the smallest budgets that fit.

        With targets, budgets are scaled only if nothing fits. Returns None if the model has too
        few layers.
        """
        if targets is not None:
            found = self._spread(hosted, 1.0, targets)
            if found:
                return found
        return _smallest_scale(lambda scale: self._spread(hosted, scale, targets))

    def fits(self, slices: Slices) -> bool:
        """Return whether every slice is within its budget."""
        starts = _starts(slices.units)
        return all(
            self.used_bytes(device, start, start + n, len(hosted)) <= budget
            for device, (start, n, hosted, budget) in enumerate(
                zip(starts, slices.units, slices.hosted, self.problem.budgets, strict=True)
            )
        )

    def used_bytes(self, device: int, start: int, end: int, hosted: int) -> float:
        """Return the bytes of a slice with a number of hosted layers."""
        if start == end:
            return 0.0
        has_output = end == len(self.problem.fixed)
        count = int(self._count[start, end])
        keeps = hosted < count or not count
        overhead = self.problem.overheads[device][has_output][keeps]
        return float(self._whole[start, end] - self._freed[start, end, hosted]) + overhead

    def _capacity(self, scale: float) -> Slices | None:
        moved = [self._needed(device, scale) for device in range(len(self.problem.budgets))]

        def costs(device: int) -> _Table:
            hosted = moved[device]
            used = self._used(device, hosted)
            evenness = np.square(used / max(1, self.problem.budgets[device]))
            # One hosted layer costs more than any uneven use of memory.
            return hosted + evenness / (1e6 * max(1.0, scale**2))

        units = self._cut(costs)
        if units is None:
            return None
        starts = _starts(units)
        counts = [
            int(moved[device][start, start + n]) if n else 0
            for device, (start, n) in enumerate(zip(starts, units, strict=True))
        ]
        return self._slices(units, counts)

    def _needed(self, device: int, scale: float) -> _Table:
        """Return the fewest hosted layers of each slice, or infinity if all are not enough."""
        bare, keeping = np.array(self.problem.overheads[device], dtype=np.float64).T
        # Indexed by the unit after the last: a slice with the last unit has the output layer.
        has_output = (np.arange(self._whole.shape[1]) == len(self.problem.fixed)).astype(int)
        room = self._whole - self.problem.budgets[device] * scale
        hosted = _search_sorted(self._freed, room + keeping[has_output])
        fits = self._all_freed >= room + bare[has_output]
        count = self._count
        keeps = np.where(count == 0, hosted == 0, hosted < count)
        needed = np.where(keeps, hosted, np.where(fits & (count > 0), count, _INFEASIBLE))
        np.fill_diagonal(needed, 0.0)
        needed[np.tril_indices_from(needed, -1)] = _INFEASIBLE
        return needed

    def _used(self, device: int, hosted: _Table) -> _Table:
        """Return the bytes of each slice, given its number of hosted layers."""
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
        self, hosted: Sequence[int], scale: float, targets: Sequence[float] | None
    ) -> Slices | None:
        units = len(self.problem.fixed)
        sizes = np.arange(units + 1)[None, :] - np.arange(units + 1)[:, None]

        def costs(device: int) -> _Table:
            counts = np.full(self._whole.shape, float(hosted[device]))
            used = self._used(device, np.minimum(counts, self._count))
            budget = self.problem.budgets[device]
            possible = (self._count >= hosted[device]) & (used <= budget * scale)
            cost = np.square(used / max(1, budget))
            if targets is not None:
                cost = np.square(sizes - targets[device]) + cost / 1e6
            return np.where(possible & (sizes >= 0), cost, _INFEASIBLE)

        found = self._cut(costs)
        return None if found is None else self._slices(found, hosted)

    def _cut(self, costs: Callable[[int], _Table]) -> tuple[int, ...] | None:
        """Return the units by device of the cut with the lowest cost, or None if there is none."""
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
        """Return the layers of a slice that are hosted first: the largest, then the first."""
        movable = self.problem.movable
        layers = [layer for layer in range(start, min(end, len(movable))) if movable[layer]]
        if not self.problem.is_ordered:
            layers.sort(key=lambda layer: (-movable[layer], layer))
        return tuple(sorted(layers[:count]))

    def _host_more(self, slices: Slices, hosted: int) -> Slices:
        """Add hosted layers up to a number, each on the device with the fullest memory."""
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


# Most problems share these: settings and devices change the fixed bytes, not the movable ones.
@lru_cache(maxsize=8)
def _freed_by_slice(
    movable: tuple[int, ...], units: int, *, is_ordered: bool
) -> tuple[_Table, npt.NDArray[np.int64]]:
    """Return the bytes freed by 0, 1, 2 and more hosted layers, and the number of such layers."""
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
        equal = np.maximum(seen[None, :] - seen[:, None], 0)
        freed += size * np.clip(moves - larger[..., None], 0.0, equal[..., None])
        larger += equal
    return freed, counts


def _search_sorted(rising: _Table, least: _Table) -> _Table:
    """Return the index along the last axis of the first entry that is at least `least`.

    It is one past the last if there is none.
    """
    depth = rising.shape[-1]
    begins = np.arange(least.size).reshape(least.shape) * depth
    low = np.zeros(least.shape, dtype=np.int64)
    high = np.full(least.shape, depth, dtype=np.int64)
    for _ in range(depth.bit_length()):
        middle = (low + high) // 2
        is_low = rising.take(begins + np.minimum(middle, depth - 1)) < least
        is_open = low < high
        low = np.where(is_open & is_low, middle + 1, low)
        high = np.where(is_open & ~is_low, middle, high)
    return low.astype(np.float64)


def _starts(units: Sequence[int]) -> list[int]:
    return [sum(units[:device]) for device in range(len(units))]


def _smallest_scale(attempt: Callable[[float], Slices | None]) -> Slices | None:
    """Return the slices for the smallest scale of budgets that has a solution."""
    high = 1.0
    found = attempt(high)
    while found is None and high < _LARGEST_SCALE:
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
