"""What to launch next: the largest expected gain for its time among points that may fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from autofit.search.grid import Floats, Grid, Rows
from autofit.search.launch_time import expected_seconds
from autofit.search.margin_map import MarginMap
from autofit.search.open_points import LEAST_FIT_PROBABILITY, OpenPoints
from autofit.search.performance_model import Forecast, PerformanceModel
from autofit.search.problem import Observation, Problem, Proposal
from autofit.search.similarity import Similarity
from autofit.search.space import Point

# Estimates asked for in one proposal, a few at a time before all points are judged again;
# the map of margins tells the rest.
_MOST_ESTIMATES = 24
_ESTIMATES_AT_ONCE = 4
# Passes over the points: estimates move the boundary and with it the points worth judging.
_PASSES = 3
# A limit counts as kept where that is more likely than not.
_KEPT = 0.5


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
        """The point to try next, None when no untried point is left."""
        self._prepare(problem)
        model = PerformanceModel(self._grid, self._similarity, observations)
        again = [model.measured[place][1] for place in model.doubtful]
        points = OpenPoints(self._grid, self._margins, self._similarity, observations, again)
        asked = 0
        for _ in range(_PASSES):
            rows = points.rows()
            if not len(rows):
                return None
            judged = self._judge(model, rows)
            asked_before = asked
            while asked < _MOST_ESTIMATES:
                chances = points.chances(judged.rows)
                best = np.argsort(-_worth(judged, chances))[:_ESTIMATES_AT_ONCE]
                new = [i for i in best if not self._margins.is_exact(judged.rows[i])]
                if not new or not self._margins.has_estimates:
                    break
                for place in new:
                    self._margins.estimate(judged.rows[place])
                asked += len(new)
            if asked == asked_before:
                break
        return self._proposal(model, judged, points.chances(judged.rows))

    def chance(self, problem: Problem, observations: Sequence[Observation], point: Point) -> float:
        """How likely a point that was not tried is to run; 0 for one that is not there."""
        self._prepare(problem)
        place = self._grid.row_of(point)
        if place is None:
            return 0.0
        row = np.array(place)
        self._margins.estimate(row)
        points = OpenPoints(self._grid, self._margins, self._similarity, observations)
        return float(points.chances(row[None, :])[0])

    def ranked(self, problem: Problem, observations: Sequence[Observation]) -> list[Observation]:
        """The launches that ran, the best first as the model sees them, noise taken out.

        Those that more likely than not keep the limits come before all others.
        """
        self._prepare(problem)
        model = PerformanceModel(self._grid, self._similarity, observations)
        if not model.measured:
            return []
        known = model.forecast_at(range(len(model.measured)))
        doubtful = model.doubtful
        order = sorted(
            range(len(model.measured)),
            key=lambda i: (i in doubtful, known.chance[i] < _KEPT, known.mean[i]),
        )
        return [model.measured[place][0] for place in order]

    def _prepare(self, problem: Problem) -> None:
        if problem is not self._problem:
            self._problem = problem
            self._grid = Grid(problem)
            self._similarity = Similarity(self._grid)
            self._margins = MarginMap(self._grid)

    def _judge(self, model: PerformanceModel, rows: Rows) -> _Judged:
        forecast = model.forecast(rows)
        seconds = expected_seconds(model.measured, forecast)
        return _Judged(rows, forecast, _gains(model, forecast), seconds)

    def _proposal(
        self, model: PerformanceModel, judged: _Judged, chances: Floats
    ) -> Proposal | None:
        worth = _worth(judged, chances)
        best = int(np.argmax(worth))
        if worth[best] <= 0:
            # Nothing is likely to fit: as long as nothing has run, the likeliest is tried.
            best = int(np.argmax(chances))
            if model.measured or chances[best] <= 0:
                return None
        gain = float(judged.gain[best] * chances[best])
        return Proposal(
            self._grid.point_of(judged.rows[best]),
            gain if model.measured else float("inf"),
            _why(model, judged.forecast, best, chances[best]),
        )


def _worth(judged: _Judged, chances: Floats) -> Floats:
    """Expected gain for a second, failures counted as no gain."""
    likely = np.where(chances >= LEAST_FIT_PROBABILITY, chances, 0.0)
    worth: Floats = judged.gain * likely / judged.seconds
    return worth


def _gains(model: PerformanceModel, forecast: Forecast) -> Floats:
    """The expected fall of log cost that each point brings, of shape (points,).

    How much better than the best point so far the new one is expected to be known to be: the
    expected improvement (Jones, Schonlau and Welch 1998) with the spread that a launch with
    its noise can move the mean (Frazier, Powell and Dayanik 2009), times the chance to keep
    the limits (Gardner et al. 2014). While nothing measured keeps them, that chance counts.
    """
    if not len(forecast.mean):
        return forecast.mean
    if not model.measured:
        promise: Floats = (forecast.mean.max() - forecast.mean + 0.01) * forecast.chance
        return promise
    known = model.forecast_at(model.trusted())
    kept = known.chance >= _KEPT
    if not kept.any():
        hope: Floats = forecast.chance + 1e-9
        return hope
    incumbent = known.mean[kept].min()
    z = (incumbent - forecast.mean) / forecast.shift_sd
    improvement = (incumbent - forecast.mean) * norm.cdf(z) + forecast.shift_sd * norm.pdf(z)
    gain: Floats = np.maximum(improvement, 0.0) * forecast.chance
    return gain


def _why(model: PerformanceModel, forecast: Forecast, place: int, chance: float) -> str:
    fits = f"{chance:.0%} likely to run"
    if not model.measured:
        return f"nothing has run yet: the best guess, {fits}"
    known = model.forecast_at(model.trusted())
    change = float(np.expm1(forecast.mean[place] - known.mean.min()))
    spread = float(forecast.sd[place])
    return f"expected to change the cost by {change:+.1%} (give or take {spread:.1%}), {fits}"
