"""What to launch next: the largest expected gain for its time among points that may fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autofit.search.acquisition import knowledge_gradient, rank_by_expected_improvement
from autofit.search.candidate_pool import CandidatePool
from autofit.search.cost_model import Forecast, PerformanceModel
from autofit.search.kernel import Kernel
from autofit.search.launch_time import expected_seconds
from autofit.search.memory_surrogate import MemorySurrogate
from autofit.search.observations import History
from autofit.search.point_grid import Floats, Grid, Rows
from autofit.search.problem import Observation, Problem, Proposal
from autofit.search.space import Point

# Passes over the points, for estimates move the boundary and with it the points worth judging,
# and the most estimates asked for in each but the last: the map of margins tells the rest.
_PASSES = 3
_MOST_ESTIMATES = 8
# Points of which those are judged too that differ in what seldom matters.
_MOST_VARIED = 48
# A gain that is only rounding.
_NOTHING = 1e-9
# A limit counts as kept where that is more likely than not.
_KEPT = 0.5
# Limits that no point is likelier to keep than this are not searched for.
_HOPELESS = 1e-3


@dataclass(frozen=True, slots=True)
class _Judged:
    """Points with what is expected of them, each of shape (points, ...)."""

    rows: Rows
    forecast: Forecast
    gain: Floats
    seconds: Floats


class ModelProposer:
    """Proposes by the performance model and the fit belief.

    It keeps estimates between proposals and nothing else: what it proposes follows from the
    observations alone, so a search that is rebuilt goes on as it would have.
    """

    def __init__(self) -> None:
        self._problem: Problem | None = None

    def propose(self, problem: Problem, observations: Sequence[Observation]) -> Proposal | None:
        """The point to try next, None when no launch would tell anything."""
        self._prepare(problem)
        history = History(self._grid, observations)
        model = PerformanceModel(self._grid, self._similarity, history)
        points = CandidatePool(self._grid, self._margins, self._similarity, history)
        for left in reversed(range(_PASSES)):
            rows = np.concatenate([points.rows(), model.wanted_rows])
            likely = points.chances(rows) >= points.least_chance
            rows = rows[likely] if likely.any() else rows
            if not len(rows):
                return None
            judged = self._judge(model, rows)
            if not self._estimate_best(judged, points, most=_MOST_ESTIMATES if left else None):
                break
        if model.measured:
            # Before, a point's promise is told against the slowest of all.
            best = np.argsort(-_worth(judged, points), kind="stable")[:_MOST_VARIED]
            judged = self._judge(model, points.variants(np.unique(judged.rows[best], axis=0)))
            self._estimate_best(judged, points, most=None)
        return self._proposal(model, judged, points)

    def _estimate_best(self, judged: _Judged, points: CandidatePool, *, most: int | None) -> bool:
        """Ask for estimates until the best point has one; whether any was asked for.

        With `most` None as many as it takes: what is proposed last must be known to be possible.
        """
        has_asked = False
        for _ in range(len(judged.rows) if most is None else most):
            worth = _worth(judged, points)
            best = judged.rows[np.argmax(worth if worth.any() else points.chances(judged.rows))]
            if not self._margins.has_estimates or self._margins.is_exact(best):
                break
            self._margins.estimate(best)
            has_asked = True
        return has_asked

    def chance(self, problem: Problem, observations: Sequence[Observation], point: Point) -> float:
        """How likely a point that was not tried is to run; 0 for one that is not there."""
        self._prepare(problem)
        place = self._grid.row_of(point)
        if place is None:
            return 0.0
        row = np.array(place)
        self._margins.estimate(row)
        history = History(self._grid, observations)
        points = CandidatePool(self._grid, self._margins, self._similarity, history)
        return float(points.chances(row[None, :])[0])

    def ranked(self, problem: Problem, observations: Sequence[Observation]) -> list[Observation]:
        """What may be picked: the best as the model sees it, noise taken out, comes first.

        Then those that may turn out to be better, near copies last; any that probably miss a
        limit come after all others.
        """
        self._prepare(problem)
        history = History(self._grid, observations)
        model = PerformanceModel(self._grid, self._similarity, history)
        is_wanted = problem.is_wanted
        crawled = [e.observation for e in history.crawled if is_wanted(e.observation.point)]
        if not model.measured:
            return crawled
        known = model.forecast_measured()
        order = rank_by_expected_improvement(known.mean, known.covariance)
        doubtful = model.doubtful
        order.sort(key=lambda place: (place in doubtful, known.chance[place] < _KEPT))
        ran = [model.measured[place].observation for place in order if model.is_wanted(place)]
        return [*ran, *crawled]

    def doubtful(self, problem: Problem, observations: Sequence[Observation]) -> list[Observation]:
        """What may be picked and was launched once, with a cost that the others do not explain."""
        self._prepare(problem)
        model = PerformanceModel(self._grid, self._similarity, History(self._grid, observations))
        return [
            model.measured[place].observation for place in model.doubtful if model.is_wanted(place)
        ]

    def _prepare(self, problem: Problem) -> None:
        if problem is not self._problem:
            self._problem = problem
            self._grid = Grid(problem)
            self._similarity = Kernel(self._grid)
            self._margins = MemorySurrogate(self._grid)

    def _judge(self, model: PerformanceModel, rows: Rows) -> _Judged:
        forecast = model.forecast(rows)
        seconds = expected_seconds([entry.observation for entry in model.measured], forecast)
        return _Judged(rows, forecast, _gains(model, forecast), seconds)

    def _proposal(
        self, model: PerformanceModel, judged: _Judged, points: CandidatePool
    ) -> Proposal | None:
        worth, chances = _worth(judged, points), points.chances(judged.rows)
        best = int(np.argmax(worth))
        if worth[best] <= _NOTHING:
            # Nothing is likely to fit: as long as nothing has run, the likeliest is tried.
            best = int(np.argmax(chances))
            if model.trusted() or chances[best] <= 0:
                return None
        gain = float(judged.gain[best] * chances[best])
        proposal = Proposal(
            self._grid.point_of(judged.rows[best]),
            gain if model.trusted() else float("inf"),
            _why(model, judged.forecast, best, chances[best]),
        )
        if not model.is_misspecified:
            return proposal
        measured = {tuple(row) for row in model.rows.tolist()}

        def is_open(point: Point) -> bool:
            row = self._grid.row_of(point)
            if row is None or row in measured:
                return False
            self._margins.estimate(np.array(row))
            chance = float(points.chances(np.array([row]))[0])
            return self._grid.is_point(row) and chance >= points.least_chance

        return replace(proposal, expected_gain=max(gain, model.luck), is_open=is_open)


def _worth(judged: _Judged, points: CandidatePool) -> Floats:
    """Expected gain for a second, failures counted as no gain."""
    chances = points.chances(judged.rows)
    worth: Floats = judged.gain * chances / judged.seconds
    worth[chances < points.least_chance] = 0.0
    return worth


def _gains(model: PerformanceModel, forecast: Forecast) -> Floats:
    """The expected fall of log cost that a launch of each point brings, of shape (points,).

    The knowledge gradient times the chance to keep the limits (Gardner et al., Bayesian
    Optimization with Inequality Constraints, 2014). While nothing measured keeps them, that
    chance alone counts, unless nothing has one: then the limits are left out. While nothing is
    measured, being faster than the slowest counts.
    """
    if not len(forecast.mean):
        return forecast.mean
    trusted = model.trusted()
    if not trusted:
        promise: Floats = (forecast.mean.max() - forecast.mean + 0.01) * forecast.chance
        return promise
    known = model.forecast_measured()
    picks = [place for place in trusted if known.chance[place] >= _KEPT]
    chance: Floats = forecast.chance
    if not picks and chance.max() >= _HOPELESS:
        return chance
    if not picks:
        # What no setting can keep says nothing of which is good.
        picks, chance = trusted, np.ones(len(chance))
    gradient = knowledge_gradient(
        forecast.mean,
        forecast.variance,
        forecast.noise,
        forecast.covariance[:, picks],
        known.mean[picks],
    )
    return gradient * chance


def _why(model: PerformanceModel, forecast: Forecast, place: int, chance: float) -> str:
    fits = f"{chance:.0%} likely to run"
    trusted = model.trusted()
    if not trusted:
        return f"nothing {'like it ' * bool(model.measured)}has run yet: the best guess, {fits}"
    best = model.forecast_measured().mean[trusted].min()
    change = float(np.expm1(forecast.mean[place] - best))
    spread = float(np.sqrt(forecast.variance[place]))
    return f"expected to change the cost by {change:+.1%} (give or take {spread:.1%}), {fits}"
