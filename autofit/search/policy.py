"""The course of a search: which launch comes next, for what, and when it is enough.

First whatever is likeliest to run and fast, until something has run; then what promises
most, until the promise is under the noise or has long not been kept; last the other side of
the winner's boundary.
Everything follows from what was told, so a resumed search goes the same way.

Closing the boundary, a neighbour that may or may not fit is measured: the search held it for
unlikely to run, and where it runs it is often the faster one. One that surely fits was not
worth a launch for its speed. So it gets none; the boundary is looked for where it is expected,
by launches that only show whether that fits.

In 50 searches of 13 simulated machines all 15 neighbours that surely fitted ran, and none was
faster; of 29 others 4 ran, all were faster and 3 became the pick. Against measuring whatever
comes next, 36 searches took 550 s to close their boundaries instead of 2,291 s, with the same
picks, and 35 instead of 30 of them ended at the true boundary.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Literal

from autofit.memory.boundary_search import BoundarySearch
from autofit.memory.demand import is_free
from autofit.search.optuna_study import SearchStudy
from autofit.search.problem import Proposal
from autofit.search.space import HOST_LAYERS_AXIS, Point

StepPhase = Literal["boundary", "search"]

# A fall of log cost that no launch is worth, where nobody says better.
LEAST_GAIN = 0.001
# Launches since what is now the best point was first seen, after which promises are not believed
# any more: on a machine that was disturbed now and then 60 launches in a row promised 0.3% each
# and brought nothing. Only small promises are doubted, up to so many times the least gain.
_PATIENCE = 12
_SMALL = 5.0
# No stop before that many launches say something about the axes that usually matter.
_LEAST_LAUNCHES = 3
# How much faster, in log cost, something that is not believed must have been to be repeated.
_WORTH_ANOTHER = 0.02
# A neighbour less likely to fit than this is believed to fail without a launch.
_SURE_NOT_TO_FIT = 0.03
# One likelier than this to fit tells nothing by fitting.
_SURE_TO_FIT = 0.97
# Further down the boundary is expected where fitting becomes less likely than this.
_LIKELY_TO_FIT = 0.5
# Launches spent on the winner's boundary after the search.
_MOST_CLOSING = 3


@dataclass(frozen=True, slots=True)
class Step:
    """A launch to make and the phase it belongs to.

    Where it `asks_fit_only`, the speed of the point is of no interest.
    """

    phase: StepPhase
    proposal: Proposal
    asks_fit_only: bool = False


@dataclass(slots=True)
class SearchPolicy:
    """One search under way; `next` opens a trial that the study's next `tell` closes.

    What a step that asks for the fit only shows is told by `tell_fits`, a failure as always.

    `least_gain` is the expected fall of log cost below which a launch is not worth it. `last`
    is the launch that was proposed last, `declined` the one that was not worth it any more, or
    was not believed any more where the search `has_stalled`.
    """

    study: SearchStudy
    least_gain: float = LEAST_GAIN
    last: Proposal | None = None
    declined: Proposal | None = None
    has_stalled: bool = False
    _is_over: bool = False
    _fitting: list[Point] = field(default_factory=list)
    _told_before: int = field(init=False)

    def __post_init__(self) -> None:
        self._told_before = len(self.study.observations)

    def next(self) -> Step | None:
        """What to launch next, None when the search is over."""
        if not self._is_over:
            proposal = self.study.ask()
            self.has_stalled = proposal is not None and self._is_stalled(proposal)
            if proposal is not None and not self.has_stalled and not self.is_enough(proposal):
                self.last = proposal
                return Step("search" if self._has_run() else "boundary", proposal)
            self.study.drop()
            again = self._unbelieved()
            if again is not None:
                self.last = again
                return Step("search", again)
            self.declined = proposal
            self._is_over = True
        return self._closing()

    def _unbelieved(self) -> Proposal | None:
        """The launch that was far faster than all others explain, once more.

        A passing advantage or a step that no model has: only another launch tells.
        """
        best = next(iter(self.study.ranked()), None)
        seen = [one for one in self.study.doubtful() if one.cost is not None]
        if best is None or best.cost is None or not seen:
            return None
        fastest = min(seen, key=lambda one: one.cost or math.inf)
        gain = math.log(best.cost / (fastest.cost or math.inf))
        if gain < _WORTH_ANOTHER:
            return None
        return Proposal(fastest.point, gain, "faster than the others explain: once more")

    def reopen(self) -> None:
        """Go on after its end, for the study wants other points than before."""
        self.last = self.declined = None
        self.has_stalled = self._is_over = False
        self._told_before = len(self.study.observations)

    def tell_fits(self, point: Point) -> None:
        """Add that a point fits, whose speed nobody has measured."""
        self._fitting.append(point)

    @property
    def is_over(self) -> bool:
        """Whether the search ended by itself: no launch was worth it, or none was left."""
        return self._is_over

    def is_enough(self, proposal: Proposal) -> bool:
        """Whether the most promising point is not worth a launch any more."""
        launches = len(self.study.observations)
        return launches >= _LEAST_LAUNCHES and proposal.expected_gain < self.least_gain

    def _is_stalled(self, proposal: Proposal) -> bool:
        """Whether small promises have long not been kept: the best point is an old one."""
        if proposal.expected_gain >= _SMALL * self.least_gain:
            return False
        seen = [observation.point for observation in self.study.observations]
        if len(seen) - self._told_before <= _PATIENCE:
            return False  # what another search launched was not launched for this one's goal
        best = next(iter(self.study.ranked()), None)
        return best is not None and len(seen) - 1 - seen.index(best.point) >= _PATIENCE

    def _has_run(self) -> bool:
        return any(observation.cost is not None for observation in self.study.observations)

    def _closing(self) -> Step | None:
        """The next launch at the best point's fit boundary, None once both sides are known."""
        best = next(iter(self.study.ranked()), None)
        if best is None or not self.study.problem.searches_layouts:
            return None
        walk = self.walk(best.point)
        value = walk.next_by_halving()
        done = sum(n < int(best.point[HOST_LAYERS_AXIS]) for n in walk.known)
        if value is None or done >= _MOST_CLOSING:
            return None
        chance = self._chance(best.point, value)
        if chance < _SURE_NOT_TO_FIT:
            return None
        if chance >= _SURE_TO_FIT:
            value = self._last_likely(best.point, range(value, walk.fewest_possible - 1, -1))
        proposal = Proposal({**best.point, HOST_LAYERS_AXIS: value}, 0.0, f"does {value} fit too?")
        return Step("boundary", proposal, asks_fit_only=self._is_slower_below(best.point))

    def _is_slower_below(self, point: Point) -> bool:
        """Whether less than what was measured surely fits, and yet was not worth a launch."""
        measured = [o.point for o in self.study.observations if o.cost is not None]
        fewest = min(int(n[HOST_LAYERS_AXIS]) for n in measured if are_on_a_line(n, point))
        below = {**point, HOST_LAYERS_AXIS: fewest - 1}
        return below in self._fitting or self.study.chance(below) >= _SURE_TO_FIT

    def _last_likely(self, point: Point, values: range) -> int:
        """The last number of host layers that is likely to fit; the first surely does."""
        unlikely = bisect_left(
            values, True, key=lambda value: self._chance(point, value) < _LIKELY_TO_FIT
        )
        return values[unlikely - 1]

    def _chance(self, point: Point, host_layers: int) -> float:
        return self.study.chance({**point, HOST_LAYERS_AXIS: host_layers})

    def walk(self, point: Point) -> BoundarySearch:
        """What is known of the boundary in host layers through a point."""
        found = BoundarySearch(
            most=self.study.problem.most_host_layers, expected=int(point[HOST_LAYERS_AXIS])
        )
        fallen = self.study.fallen()
        told = [
            (seen.point, seen.cost is not None)
            for seen in self.study.observations
            if (seen.cost is not None and seen.point not in fallen) or seen.lacked == "device"
        ]
        shown = [*((one, True) for one in self._fitting), *told]
        # What failed once does not hold, whatever else was seen of it: failures come last.
        for other, fitted in sorted(shown, key=lambda one: not one[1]):
            if are_on_a_line(other, point):
                found.record(int(other[HOST_LAYERS_AXIS]), fits=fitted)
        return found


def are_on_a_line(one: Point, other: Point) -> bool:
    """Whether two points differ in host layers only, and in what takes nothing of a device."""
    return _line(one) == _line(other)


def _line(point: Point) -> Point:
    return {
        name: value
        for name, value in point.items()
        if name != HOST_LAYERS_AXIS and not is_free(name, "device")
    }
