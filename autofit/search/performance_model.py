"""What every point is expected to cost, and how likely it keeps the limits.

The parts of a request are measured apart and modelled apart (`part`, `posterior`), for each
setting touches one of them only or both in its own way; here they are put together again.
Where launches told nothing but the whole cost, the same terms are fitted to their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from autofit.search.goal import Goal
from autofit.search.grid import Floats, Grid, Rows
from autofit.search.part import PartName, design
from autofit.search.posterior import Posterior, Prediction, fit_part
from autofit.search.problem import Observation
from autofit.search.similarity import Similarity
from autofit.trial.metric import Metric


@dataclass(frozen=True, slots=True)
class Forecast:
    """Log cost of points, mean and standard deviation, and the chance to keep all limits.

    Each of shape (points,).
    """

    mean: Floats
    sd: Floats
    chance: Floats


@dataclass(frozen=True, slots=True)
class _Fitted:
    rows: Rows
    posterior: Posterior


class PerformanceModel:
    """The belief about costs after some observations; `measured` are those with a cost."""

    def __init__(
        self, grid: Grid, similarity: Similarity, observations: Sequence[Observation]
    ) -> None:
        self._grid = grid
        self._similarity = similarity
        rows = [(o, grid.row_of(o.point)) for o in observations if o.cost is not None]
        self.measured = [(o, row) for o, row in rows if row is not None]
        self._goal = grid.problem.goal
        self._parts = {name: self._fit(name) for name in self._part_names()}
        self._offset = self._mean_offset()

    @property
    def noise(self) -> float:
        """The spread between launches of one candidate, as a standard deviation of logs."""
        return max((part.posterior.noise for part in self._parts.values()), default=0.0)

    @property
    def surprise(self) -> float:
        """How far measurements lie from what the others tell, in standard deviations."""
        return max((part.posterior.surprise for part in self._parts.values()), default=0.0)

    def forecast(self, rows: Rows) -> Forecast:
        """The expected log cost of rows."""
        told = {name: self._predict(name, rows) for name in self._parts}
        cost = self._metric(told, self._goal.objective)
        chance = np.ones(len(rows))
        for limit in self._goal.limits:
            if "request" in told and limit.metric != "request_s":
                continue  # launches did not tell it
            metric = self._metric(told, limit.metric)
            z = (math.log(limit.most) - metric.mean) / np.sqrt(metric.variance)
            chance *= ndtr(z)
        return Forecast(cost.mean, np.sqrt(cost.variance), chance)

    def forecast_measured(self) -> Forecast | None:
        """The expected log cost of the measured points, None where there are none."""
        if not self.measured:
            return None
        return self.forecast(np.array([row for _, row in self.measured], dtype=np.int64))

    def _part_names(self) -> list[PartName]:
        """The parts that are modelled: both apart where launches told them, else their sum."""
        goal = self._goal
        if goal.objective == "request_s" and self.measured:
            are_apart = any(_values(goal, o, "prompt") for o, _ in self.measured) and any(
                _values(goal, o, "generation") for o, _ in self.measured
            )
            if not are_apart:
                return ["request"]
        names: list[PartName] = []
        if goal.is_about_prompts:
            names.append("prompt")
        if goal.is_about_generation:
            names.append("generation")
        return names

    def _fit(self, name: PartName) -> _Fitted:
        told = [
            (row, value)
            for observation, row in self.measured
            if (value := _values(self._goal, observation, name))
        ]
        rows = np.array([row for row, _ in told], dtype=np.int64)
        rows = rows.reshape(len(told), len(self._grid.axes))
        logs = np.log([value for _, value in told])
        similar = self._similarity.between(rows, rows)
        return _Fitted(rows, fit_part(design(self._grid, rows, name), logs, similar))

    def _predict(self, name: PartName, rows: Rows) -> Prediction:
        part = self._parts[name]
        similar = self._similarity.between(rows, part.rows)
        return part.posterior.predict(design(self._grid, rows, name), similar)

    def _metric(self, told: dict[PartName, Prediction], metric: Metric) -> Prediction:
        if "request" in told:
            return told["request"]
        if metric in {"pp", "tg"}:
            part = told["prompt" if metric == "pp" else "generation"]
            offset = self._offset if metric == self._goal.objective else 0.0
            return Prediction(part.mean + offset, part.variance)
        prompt = told["prompt"]
        prompt_s = prompt.mean + math.log(self._goal.prompt_tokens)
        if metric == "ttft":
            return Prediction(prompt_s + self._offset, prompt.variance)
        generation = told["generation"]
        generation_s = generation.mean + math.log(self._goal.predicted_tokens)
        total = np.logaddexp(prompt_s, generation_s)
        share = np.exp(prompt_s - total)
        variance = share**2 * prompt.variance + (1 - share) ** 2 * generation.variance
        return Prediction(total + self._offset, variance)

    def _mean_offset(self) -> float:
        """What a cost has beside its parts (sending, sampling), as a logarithm."""
        goal = self._goal
        if "request" in self._parts:
            return 0.0
        found = []
        for observation, _ in self.measured:
            total = _composed(goal, observation)
            if total is not None and observation.cost is not None:
                found.append(math.log(observation.cost / total))
        return float(np.median(found)) if found else 0.0


def _values(goal: Goal, observation: Observation, part: PartName) -> float | None:
    """What an observation tells of a part, in seconds for a token; of `request`, its cost."""
    if part == "request":
        return observation.cost
    told = observation.prompt_s if part == "prompt" else observation.predicted_s
    if told is not None or observation.cost is None:
        return told
    if part == "generation":
        return observation.cost if goal.objective == "tg" else None
    if goal.objective == "ttft":
        return observation.cost / goal.prompt_tokens
    return observation.cost if goal.objective == "pp" else None


def _composed(goal: Goal, observation: Observation) -> float | None:
    """What the parts of an observation sum up to as the objective, None where one is missing."""
    prompt = _values(goal, observation, "prompt")
    generation = _values(goal, observation, "generation")
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
