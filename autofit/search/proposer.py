"""The proposer: the point with the largest expected gain per launch time that probably fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autofit.search.acquisition import (
    LIMITS_RESPECTED,
    expected_gains,
    rank_by_expected_improvement,
    relative_durations,
)
from autofit.search.candidate_pool import CandidatePool
from autofit.search.cost_model import CostModel, CostPrediction
from autofit.search.kernel import Kernel
from autofit.search.memory_surrogate import MemorySurrogate
from autofit.search.observations import LaunchHistory
from autofit.search.point_grid import Floats, PointGrid, Rows
from autofit.search.problem import Observation, Problem, Proposal
from autofit.search.space import Point

# Memory estimates move the fit boundary and so the points to evaluate. These are evaluated
# again up to this many times, with this many estimates in each pass but the last. The memory
# surrogate predicts all other points.
_PASSES = 3
_ESTIMATES_PER_PASS = 8
# The number of best points whose variants in minor axes are evaluated too.
_MOST_VARIED = 48
# A smaller acquisition value is rounding.
_MIN_VALUE = 1e-9


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """Points with the expectations of a launch of each, of shape (points, ...)."""

    rows: Rows
    predicted: CostPrediction
    gain: Floats
    duration: Floats

    def acquisition(self, pool: CandidatePool) -> Floats:
        """Return the expected gain per launch time; a failure counts as no gain."""
        probabilities = pool.success_probabilities(self.rows)
        values: Floats = self.gain * probabilities / self.duration
        values[probabilities < pool.min_probability] = 0.0
        return values


class SurrogateProposer:
    """A proposer that uses the cost model and the probability of success.

    Between proposals it keeps memory estimates only. Its proposals depend on nothing but the
    observations, so a resumed search continues as it would have.
    """

    def __init__(self) -> None:
        self._problem: Problem | None = None

    def propose(self, problem: Problem, observations: Sequence[Observation]) -> Proposal | None:
        """Return the point to launch next, or None if no launch would be informative."""
        history = self._history(problem, observations)
        model, pool = self._model(history), self._pool(history)
        for left in reversed(range(_PASSES)):
            rows = np.concatenate([pool.rows(), model.eligible_rows])
            is_likely = pool.success_probabilities(rows) >= pool.min_probability
            rows = rows[is_likely] if is_likely.any() else rows
            if not len(rows):
                return None
            evaluated = self._evaluate(model, rows)
            if not self._estimate_best(
                evaluated, pool, most=_ESTIMATES_PER_PASS if left else None
            ):
                break
        if model.measured:
            # Without measurements a gain is relative to the slowest of the evaluated points, so
            # it cannot be compared between sets of points.
            best = np.argsort(-evaluated.acquisition(pool), kind="stable")[:_MOST_VARIED]
            rows = pool.variants(np.unique(evaluated.rows[best], axis=0))
            evaluated = self._evaluate(model, rows)
            self._estimate_best(evaluated, pool, most=None)
        return self._proposal(model, evaluated, pool)

    def _estimate_best(
        self, evaluated: _Evaluated, pool: CandidatePool, *, most: int | None
    ) -> bool:
        """Estimate memory until the best point has an estimate; return whether any was made.

        `most` limits the number of estimates. Use None for no limit, because a proposed point must
        be known to be possible.
        """
        has_estimated = False
        for _ in range(len(evaluated.rows) if most is None else most):
            values = evaluated.acquisition(pool)
            if not values.any():
                values = pool.success_probabilities(evaluated.rows)
            best = evaluated.rows[np.argmax(values)]
            if not self._memory_surrogate.has_estimates or self._memory_surrogate.is_exact(best):
                break
            self._memory_surrogate.estimate(best)
            has_estimated = True
        return has_estimated

    def success_probability(
        self, problem: Problem, observations: Sequence[Observation], point: Point
    ) -> float:
        """Return the probability that a point runs, or 0 for a point that does not exist."""
        history = self._history(problem, observations)
        row = self._grid.row_of(point)
        if row is None:
            return 0.0
        rows = np.array([row])
        self._memory_surrogate.estimate(rows[0])
        return float(self._pool(history).success_probabilities(rows)[0])

    def ranked(self, problem: Problem, observations: Sequence[Observation]) -> list[Observation]:
        """Return the observations that may be picked, the best first.

        The first has the lowest posterior mean. Those that may prove to be better follow, near
        copies last. Then come those that probably violate a limit, then outliers, and at last
        suspected spills.
        """
        history = self._history(problem, observations)
        model = self._model(history)
        spilled = [
            one.observation
            for one in history.spilled
            if problem.is_eligible(one.observation.point)
        ]
        if not model.measured:
            return spilled
        predicted = model.predict_measured()
        order = rank_by_expected_improvement(predicted.mean, predicted.covariance)
        outliers, probability = model.outliers, predicted.limit_probability
        order.sort(key=lambda index: (index in outliers, probability[index] < LIMITS_RESPECTED))
        ran = [model.measured[index].observation for index in order if model.is_eligible(index)]
        return [*ran, *spilled]

    def outliers(self, problem: Problem, observations: Sequence[Observation]) -> list[Observation]:
        """Return eligible observations of one launch whose cost the others do not explain."""
        model = self._model(self._history(problem, observations))
        return [
            model.measured[index].observation
            for index in model.outliers
            if model.is_eligible(index)
        ]

    def _history(self, problem: Problem, observations: Sequence[Observation]) -> LaunchHistory:
        if problem is not self._problem:
            self._problem = problem
            self._grid = PointGrid(problem)
            self._kernel = Kernel(self._grid)
            self._memory_surrogate = MemorySurrogate(self._grid)
        return LaunchHistory(self._grid, observations)

    def _model(self, history: LaunchHistory) -> CostModel:
        return CostModel(self._grid, self._kernel, history)

    def _pool(self, history: LaunchHistory) -> CandidatePool:
        return CandidatePool(self._grid, self._memory_surrogate, self._kernel, history)

    def _evaluate(self, model: CostModel, rows: Rows) -> _Evaluated:
        predicted = model.predict(rows)
        duration = relative_durations([one.observation for one in model.measured], predicted)
        return _Evaluated(rows, predicted, expected_gains(model, predicted), duration)

    def _proposal(
        self, model: CostModel, evaluated: _Evaluated, pool: CandidatePool
    ) -> Proposal | None:
        values = evaluated.acquisition(pool)
        probabilities = pool.success_probabilities(evaluated.rows)
        best = int(np.argmax(values))
        if values[best] <= _MIN_VALUE:
            # Nothing probably fits. Until something has run, the likeliest point is tried.
            best = int(np.argmax(probabilities))
            if model.trusted or probabilities[best] <= 0:
                return None
        gain = float(evaluated.gain[best] * probabilities[best])
        proposal = Proposal(
            self._grid.point_of(evaluated.rows[best]),
            gain if model.trusted else float("inf"),
            _reason(model, evaluated.predicted, best, probabilities[best]),
        )
        if not model.is_misspecified:
            return proposal
        return replace(
            proposal,
            expected_gain=max(gain, model.random_draw_improvement),
            accepts=lambda point: self._accepts(point, model, pool),
        )

    def _accepts(self, point: Point, model: CostModel, pool: CandidatePool) -> bool:
        """Return whether a random point is new, eligible and probably runs."""
        row = self._grid.row_of(point)
        if row is None or row in {tuple(known) for known in model.rows.tolist()}:
            return False
        rows = np.array([row])
        self._memory_surrogate.estimate(rows[0])
        probability = float(pool.success_probabilities(rows)[0])
        return self._grid.is_eligible(row) and probability >= pool.min_probability


def _reason(model: CostModel, predicted: CostPrediction, index: int, probability: float) -> str:
    """Return why a point is launched, for people."""
    runs = f"{probability:.0%} likely to run"
    trusted = model.trusted
    if not trusted:
        return f"first guess{' of these settings' if model.measured else ''}, {runs}"
    best = model.predict_measured().mean[trusted].min()
    change = float(np.expm1(predicted.mean[index] - best))
    spread = float(np.sqrt(predicted.variance[index]))
    direction = "slower" if change > 0 else "faster"
    return f"predicted {abs(change):.1%} {direction} (+-{spread:.1%}), {runs}"
