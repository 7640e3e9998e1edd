"""The search policy: the next launch of a search, its phase, and the end of the search.

1. Until something has run, the point that is likeliest to run and be fast.
2. Then the point with the largest expected gain, until that is below the smallest gain worth a
   launch, which grows with the number of launches.
3. At last the other side of the winner's fit boundary.

Everything follows from the observations, so a resumed search continues as it would have.

At the boundary, a neighbour that may or may not fit is measured: the search found it too
unlikely to run, and if it runs it is often the faster one. A neighbour that certainly fits was
not worth a launch for its speed, so it gets none. Launches then go where the boundary is
expected, and only show whether the point fits.

In 50 searches of 13 simulated machines all 15 neighbours that were certain to fit ran, and none
was faster. Of 29 others 4 ran, all were faster, and 3 became the pick. Compared with measuring
every neighbour, 36 searches took 550 s for their boundaries instead of 2,291 s, with the same
picks, and 35 instead of 30 ended at the true boundary.
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

# The default of the smallest expected decrease of log cost that is worth a launch. In 33 searches
# of simulated machines, launches with a smaller expected gain gained a fifth of it on average,
# and 5% of them gained more than 0.5%.
LEAST_GAIN = 0.01
# After many launches the least gain doubles each time that this many more were made. Otherwise
# the search of a machine that the model does not explain never ends.
_USUAL_LAUNCHES = 10
_DOUBLING_LAUNCHES = 3.0
# The search does not end before this many launches, or fewer on a machine that earlier studies
# have shown.
_MIN_LAUNCHES, _MIN_LAUNCHES_IF_KNOWN = 3, 2
# An outlier is measured again if its log cost is lower than that of the best by at least this.
_MIN_OUTLIER_GAIN = 0.02
# A neighbour with a smaller probability to run is assumed to fail, without a launch.
_CERTAIN_TO_FAIL = 0.03
# A neighbour with a larger one is assumed to fit, without a launch.
_CERTAIN_TO_FIT = 0.97
# The boundary is expected where the probability to run drops below this.
_LIKELY_TO_FIT = 0.5
# The most launches at the winners' boundaries after the search.
_MOST_BOUNDARY_LAUNCHES = 3


@dataclass(frozen=True, slots=True)
class SearchStep:
    """A launch to make.

    Attributes:
        phase: the phase that it belongs to.
        proposal: the point.
        fit_only: whether it needs to show only that the point fits, and not its speed.
    """

    phase: StepPhase
    proposal: Proposal
    fit_only: bool = False


@dataclass(slots=True)
class SearchPolicy:
    """The state of one search.

    Attributes:
        study: the observations. `next_step` opens a trial of it, which the next observation
            closes. A point that only fits is added to the policy by `add_fitting`.
        least_gain: the smallest expected decrease of log cost that is worth a launch.
        workers: the number of workers. Their launches take no more time than those of one.
        last: the last proposal that was worth a launch.
        declined: the proposal that ended the search, since it was not worth a launch.
    """

    study: SearchStudy
    least_gain: float = LEAST_GAIN
    workers: int = 1
    last: Proposal | None = None
    declined: Proposal | None = None
    _is_over: bool = False
    _fitting: list[Point] = field(default_factory=list)
    _boundary_launches: int = 0
    _earlier_launches: int = field(init=False)

    def __post_init__(self) -> None:
        self._earlier_launches = len(self.study.observations)

    def next_step(self) -> SearchStep | None:
        """Return the next launch, or None at the end of the search.

        While points are pending, None means only that none is worth a launch before they end.
        """
        if not self._is_over:
            proposal = self.study.ask()
            if proposal is not None and not self.may_stop(proposal):
                self.last = proposal
                return SearchStep("search" if self._has_run() else "boundary", proposal)
            self.study.cancel()
            again = self._recheck_outlier()
            if again is not None:
                self.last = again
                return SearchStep("search", again)
            if self.study.pending:
                return None
            self.declined = proposal
            self._is_over = True
        return self._next_boundary_step()

    def _recheck_outlier(self) -> Proposal | None:
        """Return the proposal to re-measure the fastest launch that the model cannot explain.

        The cause may be a passing advantage, or a step of the cost that no term describes. Only
        another launch shows which.
        """
        best = next(iter(self.study.ranked()), None)
        outliers = [one for one in self.study.outliers() if one.cost is not None]
        if best is None or best.cost is None or not outliers:
            return None
        fastest = min(outliers, key=lambda one: one.cost or math.inf)
        gain = math.log(best.cost / (fastest.cost or math.inf))
        if gain < _MIN_OUTLIER_GAIN or fastest.point in self.study.pending:
            return None
        return Proposal(fastest.point, gain, "faster than the model explains: measured again")

    def restart(self) -> None:
        """Continue after the end of the search, because other points are eligible now."""
        self.last = self.declined = None
        self._is_over = False
        self._boundary_launches = 0
        self._earlier_launches = len(self.study.observations)

    def add_fitting(self, point: Point) -> None:
        """Add a point that fits and whose speed was not measured."""
        self._fitting.append(point)

    @property
    def is_over(self) -> bool:
        """True after the search ended by itself: no launch was worth it, or none was left."""
        return self._is_over

    @property
    def has_stalled(self) -> bool:
        """True if the search ended although some gain was expected: too many launches for it."""
        return self.declined is not None and self.declined.expected_gain >= self.least_gain

    def may_stop(self, proposal: Proposal) -> bool:
        """Return whether the expected gain of a proposal is not worth a launch."""
        launches = len(self.study.observations)
        is_known = bool(self.study.problem.past_studies) and not self.study.contradicts_knowledge
        least = _MIN_LAUNCHES_IF_KNOWN if is_known else _MIN_LAUNCHES
        return launches >= least and proposal.expected_gain < self._least_gain_now

    @property
    def _least_gain_now(self) -> float:
        """The smallest expected decrease of log cost that is worth one more launch."""
        launches = (len(self.study.observations) - self._earlier_launches) / self.workers
        launches -= _USUAL_LAUNCHES
        return self.least_gain * math.pow(2.0, max(0, launches) / _DOUBLING_LAUNCHES)

    def _has_run(self) -> bool:
        return any(observation.cost is not None for observation in self.study.observations)

    def _next_boundary_step(self) -> SearchStep | None:
        """Return the next launch at the best point's boundary, or None if both sides are known."""
        best = next(iter(self.study.ranked()), None)
        if best is None or not self.study.problem.searches_layouts:
            return None
        boundary = self.boundary_of(best.point)
        value = boundary.next_by_halving()
        if value is None or self._boundary_launches >= _MOST_BOUNDARY_LAUNCHES:
            return None
        probability = self._success_probability(best.point, value)
        if probability < _CERTAIN_TO_FAIL:
            return None
        if probability >= _CERTAIN_TO_FIT:
            value = self._last_likely(best.point, range(value, boundary.fewest_possible - 1, -1))
        why = f"checks whether {value} host layers fit"
        proposal = Proposal({**best.point, HOST_LAYERS_AXIS: value}, 0.0, why)
        if proposal.point in self.study.pending:
            return None
        self._boundary_launches += 1
        return SearchStep("boundary", proposal, fit_only=self._is_slower_below(best.point))

    def _is_slower_below(self, point: Point) -> bool:
        """Return whether fewer host layers are certain to fit but not expected to be faster."""
        measured = [o.point for o in self.study.observations if o.cost is not None]
        fewest = min(int(o[HOST_LAYERS_AXIS]) for o in measured if share_boundary(o, point))
        below = {**point, HOST_LAYERS_AXIS: fewest - 1}
        return below in self._fitting or self.study.success_probability(below) >= _CERTAIN_TO_FIT

    def _last_likely(self, point: Point, values: range) -> int:
        """Return the last number of host layers that probably fits, if the first one does."""
        unlikely = bisect_left(
            values,
            True,
            key=lambda value: self._success_probability(point, value) < _LIKELY_TO_FIT,
        )
        return values[unlikely - 1]

    def _success_probability(self, point: Point, host_layers: int) -> float:
        return self.study.success_probability({**point, HOST_LAYERS_AXIS: host_layers})

    def boundary_of(self, point: Point) -> BoundarySearch:
        """Return the known outcomes along the host layers of a point."""
        found = BoundarySearch(
            most=self.study.problem.most_host_layers, expected=int(point[HOST_LAYERS_AXIS])
        )
        failed_proof = self.study.failed_proof()
        outcomes = [(fitting, True) for fitting in self._fitting]
        outcomes += [
            (one.point, one.cost is not None)
            for one in self.study.observations
            if (one.cost is not None and one.point not in failed_proof)
            or one.exhausted_memory == "device"
        ]
        # A failure overrides an earlier success, so failures are added last.
        for other, fitted in sorted(outcomes, key=lambda outcome: not outcome[1]):
            if share_boundary(other, point):
                found.record(int(other[HOST_LAYERS_AXIS]), fits=fitted)
        return found


def share_boundary(one: Point, other: Point) -> bool:
    """Return whether two points differ only in host layers and settings without device memory."""
    return _device_settings(one) == _device_settings(other)


def _device_settings(point: Point) -> Point:
    return {
        name: value
        for name, value in point.items()
        if name != HOST_LAYERS_AXIS and not is_free(name, "device")
    }
