"""What a search is given: the space laid over a model and machine, and what was observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Point, Space
from autofit.trial.candidate import Candidate

# What stands in for the layout where none is searched (no device, or layers pinned).
FIXED_LAYOUT = "fixed"


@dataclass(frozen=True, slots=True)
class Fit:
    """What the estimate says of a candidate: the smallest margin over all devices.

    `margin_mib` is usable minus needed on the tightest device, negative when it does not
    fit; `needed_mib` is what that device must hold.
    """

    margin_mib: float
    needed_mib: float


@dataclass(frozen=True, slots=True)
class Problem:
    """The space of one tune.

    Attributes:
        space: the axes apart from layout and host layers.
        layouts: names that may be the value of the layout axis; empty when not searched.
        most_host_layers: the largest number of host layers.
        candidate_of: a point's candidate, None when no such candidate can be made.
        fit_of: the estimate for a candidate, None when nothing is known.
    """

    space: Space
    layouts: tuple[str, ...]
    most_host_layers: int
    candidate_of: Callable[[Point], Candidate | None]
    fit_of: Callable[[Candidate], Fit | None]

    @property
    def walks_layers(self) -> bool:
        """Whether layouts and host layers are searched."""
        return bool(self.layouts)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes, layout and host layers included; fixed for the life of a study."""
        if not self.walks_layers:
            return self.space.axes
        return (
            Axis(LAYOUT_AXIS, self.layouts),
            Axis(HOST_LAYERS_AXIS, tuple(range(self.most_host_layers + 1))),
            *self.space.axes,
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """A point that was tried: its cost (lower is better), None when it failed.

    `is_memory` tells a failure for want of memory from any other; `seconds` is what the
    launch took.
    """

    point: Point
    cost: float | None
    is_memory: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Proposal:
    """The point to try next; `expected_gain` is the expected fall of log cost it brings."""

    point: Point
    expected_gain: float
    why: str = ""


Proposer = Callable[[Problem, Sequence[Observation]], Proposal | None]
