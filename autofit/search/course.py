"""The course of a search: which launch comes next, for what, and when it is enough.

First whatever is likeliest to run and fast, until something has run; then what promises
most, until the promise is under the noise; last the other side of the winner's boundary.
Everything follows from what the study was told, so a resumed search goes the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autofit.search.boundary import BoundarySearch
from autofit.search.problem import Proposal
from autofit.search.space import HOST_LAYERS_AXIS, Point
from autofit.search.study import SearchStudy

StepPhase = Literal["boundary", "search"]

# A fall of log cost that no launch is worth, where nobody says better.
LEAST_GAIN = 0.001
# No stop before that many launches say something about the axes that usually matter.
_LEAST_LAUNCHES = 3
# A neighbour less likely to fit than this is believed to fail without a launch.
_SURE_NOT_TO_FIT = 0.03
# Launches spent on the winner's boundary after the search.
_MOST_CLOSING = 3


@dataclass(frozen=True, slots=True)
class Step:
    """A launch to make and the phase it belongs to."""

    phase: StepPhase
    proposal: Proposal


@dataclass(slots=True)
class Course:
    """One search under way; `next` opens a trial that the study's next `tell` closes.

    `least_gain` is the expected fall of log cost below which a launch is not worth it. `last`
    is the launch that was proposed last, `declined` the one that was not worth it any more.
    """

    study: SearchStudy
    least_gain: float = LEAST_GAIN
    last: Proposal | None = None
    declined: Proposal | None = None
    _is_over: bool = False

    def next(self) -> Step | None:
        """What to launch next, None when the search is over."""
        if not self._is_over:
            proposal = self.study.ask()
            if proposal is not None and not self.is_enough(proposal):
                self.last = proposal
                return Step("search" if self._has_run() else "boundary", proposal)
            self.declined = proposal
            self.study.drop()
            self._is_over = True
        closing = self._closing()
        return None if closing is None else Step("boundary", closing)

    @property
    def is_over(self) -> bool:
        """Whether the search ended by itself: no launch was worth it, or none was left."""
        return self._is_over

    def is_enough(self, proposal: Proposal) -> bool:
        """Whether the most promising point is not worth a launch any more."""
        launches = len(self.study.observations)
        return launches >= _LEAST_LAUNCHES and proposal.expected_gain < self.least_gain

    def _has_run(self) -> bool:
        return any(observation.cost is not None for observation in self.study.observations)

    def _closing(self) -> Proposal | None:
        """The next launch at the best point's fit boundary, None once both sides are known."""
        best = next(iter(self.study.ranked()), None)
        if best is None or not self.study.problem.walks_layers:
            return None
        walk = self.walk(best.point)
        value = walk.next_value()
        done = sum(n < int(best.point[HOST_LAYERS_AXIS]) for n in walk.known)
        if value is None or done >= _MOST_CLOSING:
            return None
        point = {**best.point, HOST_LAYERS_AXIS: value}
        if self.study.chance(point) < _SURE_NOT_TO_FIT:
            return None
        return Proposal(point, 0.0, f"does {value} fit too?")

    def walk(self, point: Point) -> BoundarySearch:
        """What is known of the boundary in host layers through a point."""
        found = BoundarySearch(
            most=self.study.problem.most_host_layers, guess=int(point[HOST_LAYERS_AXIS])
        )
        for observation in self.study.observations:
            is_on_walk = {**observation.point, HOST_LAYERS_AXIS: 0} == {
                **point,
                HOST_LAYERS_AXIS: 0,
            }
            if is_on_walk and (observation.cost is not None or observation.lacked == "device"):
                host_layers = int(observation.point[HOST_LAYERS_AXIS])
                found = found.told(host_layers, fitted=observation.cost is not None)
        return found
