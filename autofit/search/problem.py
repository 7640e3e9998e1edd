"""What a search is given: the space laid over a model and machine, and what was observed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autofit.memory.demand import Memory
from autofit.search.model_traffic import ModelTraffic
from autofit.search.search_goal import Goal
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Point, Space
from autofit.trial.candidate import Candidate


@dataclass(frozen=True, slots=True)
class Fit:
    """What the estimate says of a candidate: the smallest margin over all devices.

    `margin_mib` is usable minus needed on the tightest device, negative when it does not
    fit; `needed_mib` is what that device must hold. The same of the host, nan where nothing
    is known of it.
    """

    margin_mib: float
    needed_mib: float
    host_margin_mib: float = math.nan
    host_needed_mib: float = 0.0


@dataclass(frozen=True, slots=True)
class Problem:
    """The space of one tune.

    Attributes:
        space: the axes apart from layout and host layers.
        layouts: names that may be the value of the layout axis; empty when not searched.
        most_host_layers: the largest number of host layers.
        candidate_of: a point's candidate, None when no such candidate can be made.
        fit_of: the estimate for a candidate, None when nothing is known.
        goal: what is minimised, and within which limits.
        traits: what of the model and the workload decides how long things take.
        points: the only points there are; empty when every combination of values is one.
        is_wanted: whether a point may be proposed and picked, asked without layout and host
            layers, too; what was observed of others still tells of these.
    """

    space: Space
    layouts: tuple[str, ...]
    most_host_layers: int
    candidate_of: Callable[[Point], Candidate | None]
    fit_of: Callable[[Candidate], Fit | None]
    goal: Goal = field(default_factory=Goal)
    traits: ModelTraffic = field(default_factory=ModelTraffic)
    points: tuple[Point, ...] = ()
    is_wanted: Callable[[Point], bool] = lambda _: True

    @property
    def searches_layouts(self) -> bool:
        """Whether layouts and host layers are searched."""
        return bool(self.layouts)

    @property
    def has_points(self) -> bool:
        """Whether any combination of the space's values may be proposed."""
        return any(self.is_wanted(point) for point in self.points or self.space.points())

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes, layout and host layers included; fixed for the life of a study."""
        if not self.searches_layouts:
            return self.space.axes
        return (
            Axis(LAYOUT_AXIS, self.layouts),
            Axis(HOST_LAYERS_AXIS, tuple(range(self.most_host_layers + 1))),
            *self.space.axes,
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """A point that was tried: its cost (lower is better), None when it failed.

    Attributes:
        point: values of all axes.
        cost: the goal's objective as a quantity to minimise.
        lacked: the memory that it failed for want of, None for any other failure.
        seconds: what the launch took.
        prompt_s: seconds for a prompt token, None where it was not measured.
        predicted_s: seconds for a generated token, None where it was not measured.
    """

    point: Point
    cost: float | None
    lacked: Memory | None = None
    seconds: float = 0.0
    prompt_s: float | None = None
    predicted_s: float | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """The point to try next.

    `expected_gain` is the expected fall of log cost it brings, failure counted as none.
    Where `is_open` is given, the proposer does not trust itself: any point that `is_open`
    accepts may be tried instead.
    """

    point: Point
    expected_gain: float
    why: str = ""
    is_open: Callable[[Point], bool] | None = None


class Proposer(Protocol):
    """Decides what is launched next, from the observations alone."""

    def propose(self, problem: Problem, observations: Sequence[Observation]) -> Proposal | None:
        """The point to try next, None when no untried point is left."""
        ...

    def chance(self, problem: Problem, observations: Sequence[Observation], point: Point) -> float:
        """How likely a point that was not tried is to run."""
        ...

    def ranked(self, problem: Problem, observations: Sequence[Observation]) -> list[Observation]:
        """The launches that ran, the best first as the proposer sees them."""
        ...

    def doubtful(self, problem: Problem, observations: Sequence[Observation]) -> list[Observation]:
        """What may be picked and was launched once, with a cost that the others do not explain."""
        ...
