"""The proposer: the point with the largest expected gain per launch time that probably fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autofit.memory.demand import is_free
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
from autofit.search.past_studies import MachinePrior
from autofit.search.point_grid import Floats, PointGrid, Rows
from autofit.search.problem import Observation, Problem, Proposal
from autofit.search.space import LAYOUT_AXIS, Point

# Memory estimates move the fit boundary and so the points to evaluate. These are evaluated
# again up to this many times, with this many estimates in each pass but the last. The memory
# surrogate predicts all other points.
_PASSES = 3
_ESTIMATES_PER_PASS = 8
# The number of best points whose variants in minor axes are evaluated too.
_MOST_VARIED = 48
# The least expected gain of a launch on devices that no launch has used together yet.
_LEAST_STRUCTURE_GAIN = 0.01
# A smaller acquisition value is rounding.
_MIN_VALUE = 1e-9


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """Points with the expectations of a launch of each, of shape (points, ...).

    With `is_guess` the gain of a point depends on its expected cost alone.
    """

    rows: Rows
    predicted: CostPrediction
    gain: Floats
    duration: Floats
    is_guess: bool = False

    def replace_prediction(self, index: int, one: _Evaluated) -> None:
        """Replace the expectations of a point by those of a single one."""
        old, new = float(self.predicted.mean[index]), float(one.predicted.mean[0])
        if self.is_guess:
            self.gain[index] *= np.exp(old - new)
        else:
            self.gain[index], self.duration[index] = one.gain[0], one.duration[0]
        self.predicted.replace(index, one.predicted)

    def joined(self, other: _Evaluated) -> _Evaluated:
        """Return both in one."""
        return _Evaluated(
            np.concatenate([self.rows, other.rows]),
            self.predicted.joined(other.predicted),
            np.concatenate([self.gain, other.gain]),
            np.concatenate([self.duration, other.duration]),
        )

    def at(self, indices: Rows) -> _Evaluated:
        """Return some of the points, in that order."""
        return _Evaluated(
            self.rows[indices],
            self.predicted.at(indices),
            self.gain[indices],
            self.duration[indices],
        )

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
        self._pending: frozenset[tuple[int, ...]] = frozenset()

    def propose(
        self,
        problem: Problem,
        observations: Sequence[Observation],
        pending: Sequence[Point] = (),
    ) -> Proposal | None:
        """Return the point to launch next, or None if no launch would be informative.

        The `pending` points are being launched elsewhere. They count as launched, with the cost
        that the model expects (the kriging believer of Ginsbourger, Le Riche and Carraro, Kriging
        is well-suited to parallelize optimization, 2010), so a near copy of one has no gain.
        """
        history = self._history(problem, observations)
        model, pool = self._model(history), self._pool(history)
        pending_rows = (self._grid.row_of(point) for point in pending)
        self._pending = frozenset(row for row in pending_rows if row is not None)
        if self._pending:
            expected = model.expect(history.matrix(sorted(self._pending)))
            history = self._history(problem, [*observations, *expected])
            model = self._model(history)
        evaluated: _Evaluated | None = None
        for left in reversed(range(_PASSES)):
            rows = self._repeatable(np.concatenate([pool.rows(), model.eligible_rows]), history)
            is_likely = pool.success_probabilities(rows) >= pool.min_probability
            rows = rows[is_likely] if is_likely.any() else rows
            if not len(rows):
                return None
            evaluated = self._evaluate(model, rows, evaluated)
            if not self._estimate_best(
                model, evaluated, pool, most=_ESTIMATES_PER_PASS if left else None
            ):
                break
        if model.measured and evaluated is not None:
            # Without measurements a gain is relative to the slowest of the evaluated points, so
            # it cannot be compared between sets of points.
            best = np.argsort(-evaluated.acquisition(pool), kind="stable")[:_MOST_VARIED]
            rows = pool.variants(np.unique(evaluated.rows[best], axis=0))
            rows = self._repeatable(rows, history)
            new = self._untried_structure(model, history, pool, evaluated)
            if new is not None:
                self._estimate_best(model, new, pool, most=None)
                if new.acquisition(pool).max() > _MIN_VALUE:
                    return self._proposal(model, new, pool)
            evaluated = self._evaluate(model, rows, evaluated)
            self._estimate_best(model, evaluated, pool, most=None)
        return self._proposal(model, evaluated, pool) if evaluated is not None else None

    def _repeatable(self, rows: Rows, history: LaunchHistory) -> Rows:
        """Return the rows without those that may not be launched again, or are pending."""
        launches = Counter(one.row for one in history.launches)
        problem, columns = self._grid.problem, range(len(self._grid.axes))
        used = [
            row
            for row, count in launches.items()
            if row in self._pending or not problem.may_repeat(self._grid.point_of(row), count)
        ]
        codes = self._grid.codes(rows, columns)
        return rows[~np.isin(codes, self._grid.codes(history.matrix(used), columns))]

    def _untried_structure(
        self, model: CostModel, history: LaunchHistory, pool: CandidatePool, evaluated: _Evaluated
    ) -> _Evaluated | None:
        """Return the best guesses on devices that no launch has used together yet.

        These come before any fine tuning, those with the largest expected gain first, since
        launches on other devices say little about them. Devices that are certain to be slower
        get no launch.
        """
        if self._grid.work is None or not model.trusted:
            return None
        tried = set(self._grid.work.structures(history.matrix([o.row for o in history.launches])))
        structures = self._grid.work.structures(evaluated.rows)
        gains = evaluated.gain * pool.success_probabilities(evaluated.rows)
        is_new = np.array([structure not in tried for structure in structures])
        if not is_new.any() or gains[is_new].max() < _LEAST_STRUCTURE_GAIN:
            return None
        chosen = structures[int(np.argmax(np.where(is_new, gains, -1.0)))]
        on_devices = np.flatnonzero([structure == chosen for structure in structures])
        changed = self._changed_settings(evaluated.rows[on_devices], model)
        found = evaluated.at(on_devices[changed == changed.min()].astype(np.int64))
        # All have the same gain, so the best guess is the point with the lowest expected cost.
        gain = gains[is_new].max() * np.exp(found.predicted.mean.min() - found.predicted.mean)
        return replace(found, gain=gain, duration=np.ones(len(gain)), is_guess=True)

    def _changed_settings(self, rows: Rows, model: CostModel) -> Rows:
        """Return how many settings differ from the best launch, without those that need memory.

        If a setting changed together with the devices, the model could not know which of the
        two made the difference.
        """
        means = model.predict_measured().mean[model.trusted]
        best = model.rows[model.trusted[int(np.argmin(means))]]
        columns = [
            column
            for column, axis in enumerate(self._grid.axes)
            if is_free(axis.name, "device") and axis.name != LAYOUT_AXIS
        ]
        changed: Rows = (rows[:, columns] != best[columns]).sum(axis=1)
        return changed

    def _estimate_best(
        self, model: CostModel, evaluated: _Evaluated, pool: CandidatePool, *, most: int | None
    ) -> bool:
        """Estimate memory until the best point has an estimate; return whether any was made.

        The work of its devices becomes exact, too. `most` limits the number of estimates. Use
        None for no limit, because a proposed point must be known to be possible.
        """
        has_estimated = False
        # Each point is estimated once and found to be a copy once.
        for _ in range(2 * len(evaluated.rows) if most is None else most):
            values = evaluated.acquisition(pool)
            is_worth_it = bool(values.any())
            if not is_worth_it:
                values = pool.success_probabilities(evaluated.rows)
            index = int(np.argmax(values))
            best = evaluated.rows[index]
            if is_worth_it and self._is_launched_otherwise(best):
                evaluated.gain[index] = 0.0
                continue
            is_known = self._memory_surrogate.is_exact(best)
            if not self._memory_surrogate.has_estimates or is_known:
                break
            self._memory_surrogate.estimate(best)
            if self._grid.work is not None:
                self._grid.work.learn(best.tolist())
                evaluated.replace_prediction(index, self._evaluate(model, best[None], None))
            has_estimated = True
        return has_estimated

    def _is_launched_otherwise(self, row: Rows) -> bool:
        """Return whether the candidate of a row was launched as that of another row.

        Different layouts may give the same candidate. It may be worth another launch, but as
        the same point.
        """
        candidate = self._grid.problem.candidate_of(self._grid.point_of(row))
        return candidate is not None and self._launched.get(candidate.key, ()) not in (
            (),
            tuple(row.tolist()),
        )

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

    def expect(
        self, problem: Problem, observations: Sequence[Observation], point: Point
    ) -> Observation:
        """Return the observation that is expected of a launch that completes."""
        history = self._history(problem, observations)
        return self._model(history).expect(np.array([self._grid.row_of(point)]))[0]

    def contradicts_knowledge(self, problem: Problem, observations: Sequence[Observation]) -> bool:
        """Return whether the first launches differ from what earlier studies have shown."""
        return bool(self._model(self._history(problem, observations)).contradicted)

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
            self._prior = MachinePrior(problem)
            self._memory_surrogate = MemorySurrogate(self._grid)
        history = LaunchHistory(self._grid, observations)
        self._launched: dict[str, tuple[int, ...]] = {}
        for one in history.launches:
            candidate = problem.candidate_of(one.observation.point)
            if candidate is not None:
                self._launched.setdefault(candidate.key, one.row)
        return history

    def _model(self, history: LaunchHistory) -> CostModel:
        return CostModel(self._grid, self._kernel, history, self._prior)

    def _pool(self, history: LaunchHistory) -> CandidatePool:
        return CandidatePool(self._grid, self._memory_surrogate, self._kernel, history)

    def _evaluate(self, model: CostModel, rows: Rows, earlier: _Evaluated | None) -> _Evaluated:
        """Return the predictions for rows. `earlier` has the predictions for some of the rows."""
        if earlier is not None and model.trusted:
            columns = range(len(self._grid.axes))
            codes = self._grid.codes(rows, columns)
            earlier_codes = self._grid.codes(earlier.rows, columns)
            fresh = rows[~np.isin(codes, earlier_codes)]
            both = earlier.joined(self._evaluate(model, fresh, None)) if len(fresh) else earlier
            order = np.argsort(both_codes := self._grid.codes(both.rows, columns), kind="stable")
            return both.at(order[np.searchsorted(both_codes, codes, sorter=order)])
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
