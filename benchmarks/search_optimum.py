"""The best point of a machine's whole space, found without launches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from benchmarks.search_machine import SearchMachine

# Host layers between the points that are looked at first, at least.
_STRIDE = 6
# Points that are not within this of the best of all are not looked at again: those tried with
# the first values of what takes no memory, and those tried with all.
_HOPEFUL, _PROMISING = 2.0, 1.25
# What changes the memory of a point; all combinations of the rest share a placement.
_MEMORY = ("ubatch", "cache_type", "flash_attn", "op_offload", "prefetch_slots", "moe_cache_mib")
_PLAIN = 4  # the first of these every runtime has

# A layout, what changes memory, and a number of host layers.
Spot = tuple[str, tuple, int]


@dataclass(slots=True)
class _Lookout:
    """The best of what was looked at, spot by spot."""

    machine: SearchMachine
    problem: Problem = field(init=False)
    lines: dict[tuple, list[Point]] = field(init=False)
    seen: dict[Spot, tuple[float, Point]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.problem = self.machine.problem(self.machine.memory_model())
        self.lines = _by_memory(self.problem)

    @property
    def plain_lines(self) -> list[tuple]:
        """One line for each combination of what every runtime has, with the rest off."""
        return list({line[:_PLAIN]: line for line in reversed(self.lines)}.values())

    def look(self, spots: Iterable[Spot], *, is_thorough: bool) -> None:
        """Try all combinations of the rest at some spots, or only all numbers of threads."""
        for layout, line, hosted in spots:
            rests = self.lines[line]
            for rest in rests if is_thorough else _differing(rests, "threads"):
                point = {LAYOUT_AXIS: layout, HOST_LAYERS_AXIS: hosted, **rest}
                candidate = self.problem.candidate_of(point)
                seconds = self.machine.truth(candidate) if candidate else None
                best = self.seen.get((layout, line, hosted))
                if seconds is not None and (best is None or seconds < best[0]):
                    self.seen[layout, line, hosted] = (seconds, point)

    def near_best(self, factor: float) -> list[Spot]:
        """Spots that are no worse than the best by more than a factor."""
        lowest = min(seconds for seconds, _ in self.seen.values())
        return [spot for spot, (seconds, _) in self.seen.items() if seconds <= lowest * factor]


def optimum(machine: SearchMachine) -> tuple[float, Point]:
    """The best point of the whole space, and its seconds without noise.

    Every ubatch and cache type is tried with every number of threads at some counts of host
    layers of every layout; where that comes near the best, all combinations of the rest are
    tried, last at every count around the best.
    """
    lookout = _Lookout(machine)
    most = lookout.problem.most_host_layers
    stride = max(_STRIDE, most // 8)
    coarse = (*range(most, 0, -stride), 0)
    lookout.look(
        (
            (layout, line, hosted)
            for layout in lookout.problem.layouts
            for line in lookout.plain_lines
            for hosted in coarse
        ),
        is_thorough=False,
    )
    lookout.look(
        (
            (layout, line, hosted)
            for layout, plain, hosted in lookout.near_best(_HOPEFUL)
            for line in lookout.lines
            if line[:_PLAIN] == plain[:_PLAIN]
        ),
        is_thorough=True,
    )
    around = {
        (layout, line, near)
        for layout, line, hosted in lookout.near_best(_PROMISING)
        for near in range(max(0, hosted - stride + 1), min(most, hosted + stride - 1) + 1)
    }
    lookout.look(sorted(around - set(lookout.seen), key=str), is_thorough=False)
    lookout.look(lookout.near_best(_PROMISING), is_thorough=True)
    return min(lookout.seen.values(), key=lambda best: best[0])


def _differing(points: Sequence[Point], name: str) -> list[Point]:
    """Of the points, those that differ from the first in that value alone."""
    first = {**points[0], name: None}
    return [point for point in points if {**point, name: None} == first]


def _by_memory(problem: Problem) -> dict[tuple, list[Point]]:
    """Combinations of values by those that change memory."""
    found: dict[tuple, list[Point]] = {}
    for point in problem.space.points():
        found.setdefault(tuple(point.get(name) for name in _MEMORY), []).append(point)
    return found
