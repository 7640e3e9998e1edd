"""The surrogate model: the predictive distribution of every point's cost, and of its limits.

Prompt and generation are measured and modelled separately (`cost_terms`, `posterior`), since a
setting changes only one of them, or both in different ways. Here they are combined into the cost.
If launches measured the whole cost only, the same terms are fitted to their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from autofit.search.cost_terms import PartName, build_design
from autofit.search.kernel import Kernel
from autofit.search.observations import LaunchHistory
from autofit.search.past_studies import MachinePrior
from autofit.search.point_grid import Floats, PointGrid, Rows
from autofit.search.posterior import PartPrediction, Posterior, fit_posterior
from autofit.search.problem import Goal, Observation
from autofit.trial.metric import Metric

# The model is misspecified if, after this many launches, the root mean square of the
# standardized residuals exceeds this value.
_MIN_LAUNCHES_TO_JUDGE = 6
_MISSPECIFIED_RESIDUAL = 2.0


@dataclass(frozen=True, slots=True)
class CostPrediction:
    """The predictive distribution of the log cost of some points.

    Attributes:
        mean: of shape (points,).
        variance: without noise, of shape (points,).
        noise_variance: of one launch, of shape (points,).
        covariance: with the measured points, of shape (points, measured).
        limit_probability: that the point respects all limits, of shape (points,).
    """

    mean: Floats
    variance: Floats
    noise_variance: Floats
    covariance: Floats
    limit_probability: Floats

    def joined(self, other: CostPrediction) -> CostPrediction:
        """Return the distribution of both sets of points."""
        pairs = zip(self._arrays, other._arrays, strict=True)
        return CostPrediction(*(np.concatenate(pair) for pair in pairs))

    def at(self, indices: Rows) -> CostPrediction:
        """Return the distribution of some of the points, in that order."""
        return CostPrediction(*(array[indices] for array in self._arrays))

    def replace(self, index: int, one: CostPrediction) -> None:
        """Replace the distribution of a point by that of a single one."""
        for array, new in zip(self._arrays, one._arrays, strict=True):
            array[index] = new[0]

    @property
    def _arrays(self) -> tuple[Floats, ...]:
        return (
            self.mean, self.variance, self.noise_variance, self.covariance, self.limit_probability
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _FittedPart:
    """A part after its measurements: their indices in `measured`, and the posterior."""

    indices: list[int]
    posterior: Posterior


class CostModel:
    """The posterior of the cost after some launches.

    Attributes:
        measured: the launches that ran, which are the data.
        rows: of the same, of shape (measured, axes).
        contradicted: the parts whose launches contradict what earlier studies have shown.
    """

    def __init__(
        self, grid: PointGrid, kernel: Kernel, history: LaunchHistory, prior: MachinePrior
    ) -> None:
        self._grid = grid
        self._prior = prior
        self.contradicted: set[PartName] = set()
        self._kernel = kernel
        self.measured = history.ran
        self._goal = grid.problem.goal
        self.rows = history.matrix([one.row for one in self.measured])
        self._eligible = [
            index
            for index, one in enumerate(self.measured)
            if one.row not in history.failed_proof
            and grid.problem.is_eligible(one.observation.point)
        ]
        self._parts = {name: self._fit(name) for name in self._part_names()}
        self._offset = self._median_offset()
        self._at_data = {name: self._predict_part(name, self.rows) for name in self._parts}

    @property
    def standardized_residual(self) -> float:
        """The root mean square of the standardized leave-one-out residuals, of the worst part."""
        residuals = (part.posterior.standardized_residual for part in self._parts.values())
        return max(residuals, default=0.0)

    @property
    def is_misspecified(self) -> bool:
        """True if the model does not explain the data with the most noise that it allows."""
        return (
            len(self.measured) >= _MIN_LAUNCHES_TO_JUDGE
            and self.standardized_residual > _MISSPECIFIED_RESIDUAL
        )

    @property
    def random_draw_improvement(self) -> float:
        """Expected improvement of log cost by a random draw, given only earlier costs.

        Of n + 1 draws from one distribution the last is the lowest with probability
        1 / (n + 1). It is then lower by about one standard deviation.
        """
        costs = [one.observation.cost for one in self.measured]
        logs = np.log([cost for cost in costs if cost is not None])
        return float(logs.std()) / (len(logs) + 1)

    @property
    def outliers(self) -> frozenset[int]:
        """Indices in `measured` of outliers whose point was launched once.

        Only another launch shows whether the cause was a passing disturbance or a cliff.
        """
        rows = [one.row for one in self.measured]
        return frozenset(
            index
            for part in self._parts.values()
            for outlier in part.posterior.outliers
            if rows.count(rows[index := part.indices[outlier]]) == 1
        )

    def predict(self, rows: Rows) -> CostPrediction:
        """Return the predictive distribution of the log cost of rows."""
        parts = {name: self._predict_part(name, rows) for name in self._parts}
        cost = self._predict_metric(parts, self._goal.objective)
        probability = np.ones(len(rows))
        for limit in self._goal.limits:
            if "request" in parts and limit.metric != "request_s":
                continue  # no launch measured it
            metric = self._predict_metric(parts, limit.metric)
            z = (math.log(limit.most) - metric.mean) / np.sqrt(metric.variance)
            probability *= ndtr(z)
        return CostPrediction(
            cost.mean, cost.variance, cost.noise_variance, cost.covariance, probability
        )

    def expect(self, rows: Rows) -> list[Observation]:
        """Return the expected observations of launches of rows, as if each of them ran."""
        mean = self.predict(rows).mean
        parts = {name: self._predict_part(name, rows).mean for name in self._parts}
        return [
            Observation(
                self._grid.point_of(row),
                float(np.exp(mean[index])),
                prompt_s=_exponential(parts.get("prompt"), index),
                predicted_s=_exponential(parts.get("generation"), index),
            )
            for index, row in enumerate(rows)
        ]

    def predict_measured(self) -> CostPrediction:
        """Return the predictive distribution at the measured points, in their order."""
        return self.predict(self.rows)

    def is_eligible(self, index: int) -> bool:
        """Return whether a launch in `measured` may be picked."""
        return index in self._eligible

    @property
    def eligible_rows(self) -> Rows:
        """Rows of the launches that may be picked, of shape (launches, axes)."""
        return self.rows[self._eligible]

    @property
    def trusted(self) -> list[int]:
        """Indices in `measured` of eligible launches without outliers, or all if none is left."""
        outliers = self.outliers
        return [index for index in self._eligible if index not in outliers] or self._eligible

    def _part_names(self) -> list[PartName]:
        """Return the parts to model: prompt and generation if measured, else their sum."""
        goal = self._goal
        if goal.objective == "request_s" and self.measured:
            observations = [one.observation for one in self.measured]
            are_apart = any(_measured_part(goal, o, "prompt") for o in observations) and any(
                _measured_part(goal, o, "generation") for o in observations
            )
            if not are_apart:
                return ["request"]
        names: list[PartName] = []
        if goal.needs_prompt_time:
            names.append("prompt")
        if goal.needs_generation_time:
            names.append("generation")
        return names

    def _fit(self, name: PartName) -> _FittedPart:
        values = [_measured_part(self._goal, one.observation, name) for one in self.measured]
        indices = [index for index, value in enumerate(values) if value is not None]
        rows = self.rows[indices]
        logs = np.log([value for value in values if value is not None])
        kernel = self._kernel.matrix(rows, rows)
        order = np.array([self.measured[index].index for index in indices], dtype=float)
        design = build_design(self._grid, rows, name)
        types = design.machine_types
        if self._prior.is_contradicted(design, name, logs):
            self.contradicted.add(name)
        else:
            types = self._prior.machine_types(design, name)
        design = replace(design, machine_types=(*types, *design.strong_settings))
        posterior = fit_posterior(design, logs, kernel, order)
        return _FittedPart(indices, posterior)

    def _predict_part(self, name: PartName, rows: Rows) -> PartPrediction:
        part = self._parts[name]
        kernel = self._kernel.matrix(rows, self.rows[part.indices])
        predicted = part.posterior.predict(build_design(self._grid, rows, name), kernel)
        # The covariance with launches that did not measure the part is 0.
        covariance = np.zeros((len(rows), len(self.measured)))
        covariance[:, part.indices] = predicted.covariance
        return replace(predicted, covariance=covariance)

    def _predict_metric(
        self, parts: dict[PartName, PartPrediction], metric: Metric
    ) -> PartPrediction:
        """Return the predictive distribution of a metric, linearised around the means."""
        if "request" in parts:
            return parts["request"]
        if metric in {"pp", "tg"}:
            part = parts["prompt" if metric == "pp" else "generation"]
            offset = self._offset if metric == self._goal.objective else 0.0
            return replace(part, mean=part.mean + offset)
        prompt = parts["prompt"]
        prompt_s = prompt.mean + math.log(self._goal.prompt_tokens)
        if metric == "ttft":
            return replace(prompt, mean=prompt_s + self._offset)
        generation = parts["generation"]
        generation_s = generation.mean + math.log(self._goal.predicted_tokens)
        total = np.logaddexp(prompt_s, generation_s)
        share = np.exp(prompt_s - total)
        data_share = self._prompt_share_at_data()
        return PartPrediction(
            total + self._offset,
            share**2 * prompt.variance + (1 - share) ** 2 * generation.variance,
            share**2 * prompt.noise_variance + (1 - share) ** 2 * generation.noise_variance,
            np.outer(share, data_share) * prompt.covariance
            + np.outer(1 - share, 1 - data_share) * generation.covariance,
        )

    def _prompt_share_at_data(self) -> Floats:
        """Return the prompt's share of a request's time at the measured points."""
        goal = self._goal
        prompt_s = self._at_data["prompt"].mean + math.log(goal.prompt_tokens)
        generation_s = self._at_data["generation"].mean + math.log(goal.predicted_tokens)
        share: Floats = np.exp(prompt_s - np.logaddexp(prompt_s, generation_s))
        return share

    def _median_offset(self) -> float:
        """Return the median log ratio of cost to the sum of its parts (sending, sampling)."""
        goal = self._goal
        if "request" in self._parts:
            return 0.0
        found = []
        for observation in (one.observation for one in self.measured):
            total = _sum_of_parts(goal, observation)
            if total is not None and observation.cost is not None:
                found.append(math.log(observation.cost / total))
        return float(np.median(found)) if found else 0.0


def _exponential(logs: Floats | None, index: int) -> float | None:
    return None if logs is None else float(np.exp(logs[index]))


def _measured_part(goal: Goal, observation: Observation, part: PartName) -> float | None:
    """Return the measured seconds per token of a part, or the cost for `request`.

    The cost replaces a part that was not measured, if the objective depends on that part only.
    """
    if part == "request":
        return observation.cost
    measured = observation.prompt_s if part == "prompt" else observation.predicted_s
    if measured is not None or observation.cost is None:
        return measured
    if part == "generation":
        return observation.cost if goal.objective == "tg" else None
    if goal.objective == "ttft":
        return observation.cost / goal.prompt_tokens
    return observation.cost if goal.objective == "pp" else None


def _sum_of_parts(goal: Goal, observation: Observation) -> float | None:
    """Return the objective computed from the measured parts, or None if one is missing."""
    prompt = _measured_part(goal, observation, "prompt")
    generation = _measured_part(goal, observation, "generation")
    if goal.objective == "pp":
        return prompt
    if goal.objective == "tg":
        return generation
    if prompt is None:
        return None
    if goal.objective == "ttft":
        return prompt * goal.prompt_tokens
    if generation is None:
        return None
    return prompt * goal.prompt_tokens + generation * goal.predicted_tokens
