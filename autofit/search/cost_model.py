"""What every point is expected to cost, and how likely it keeps the limits.

The parts of a request are measured apart and modelled apart (`part`, `posterior`), for each
setting touches one of them only or both in its own way; here they are put together again.
Where launches told nothing but the whole cost, the same terms are fitted to their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from autofit.search.cost_terms import PartName, design
from autofit.search.kernel import Kernel
from autofit.search.observations import History
from autofit.search.point_grid import Floats, Grid, Rows
from autofit.search.posterior import Posterior, Prediction, fit_part
from autofit.search.problem import Observation
from autofit.search.search_goal import Goal
from autofit.trial.metric import Metric

# From how many launches on, and how many standard deviations off in the mean square, the
# measurements contradict the model.
_LEAST_TO_CONTRADICT = 6
_CONTRADICTED = 2.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Log cost of points.

    Attributes:
        mean: of shape (points,).
        variance: of the same.
        noise: variance of the noise of one launch.
        covariance: with the measured points, of shape (points, measured).
        chance: of keeping all limits, of shape (points,).
    """

    mean: Floats
    variance: Floats
    noise: Floats
    covariance: Floats
    chance: Floats


@dataclass(frozen=True, slots=True)
class _Fitted:
    rows: Rows
    places: tuple[int, ...]
    posterior: Posterior


class PerformanceModel:
    """The belief about costs after some launches; `measured` are those that ran."""

    def __init__(self, grid: Grid, similarity: Kernel, history: History) -> None:
        self._grid = grid
        self._similarity = similarity
        self.measured = history.ran
        self._goal = grid.problem.goal
        self.rows = history.matrix([entry.row for entry in self.measured])
        self._wanted = [
            place
            for place, entry in enumerate(self.measured)
            if entry.row not in history.fallen and grid.problem.is_wanted(entry.observation.point)
        ]
        self._parts = {name: self._fit(name) for name in self._part_names()}
        self._offset = self._mean_offset()
        self._known = {name: self._predict(name, self.rows) for name in self._parts}

    @property
    def noise(self) -> float:
        """The spread between launches of one candidate, as a standard deviation of logs."""
        return max((part.posterior.noise for part in self._parts.values()), default=0.0)

    @property
    def surprise(self) -> float:
        """How far measurements lie from what the others tell, in standard deviations."""
        return max((part.posterior.surprise for part in self._parts.values()), default=0.0)

    @property
    def is_misspecified(self) -> bool:
        """Whether even the largest noise and residual leave measurements unexplained."""
        return len(self.measured) >= _LEAST_TO_CONTRADICT and self.surprise > _CONTRADICTED

    @property
    def luck(self) -> float:
        """The fall of log cost that a draw brings of which nothing is known but those before.

        One more of n + 1 alike draws is the lowest with chance 1 / (n + 1), then by about as
        much as they are spread.
        """
        costs = [entry.observation.cost for entry in self.measured]
        logs = np.log([cost for cost in costs if cost is not None])
        return float(logs.std()) / (len(logs) + 1)

    @property
    def doubtful(self) -> frozenset[int]:
        """The places in `measured` of outliers that were launched only once.

        Whether a passing disturbance or a cliff slowed them, another launch tells.
        """
        rows = [entry.row for entry in self.measured]
        return frozenset(
            place
            for part in self._parts.values()
            for outlier in part.posterior.doubtful
            if rows.count(rows[place := part.places[outlier]]) == 1
        )

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
        return Forecast(cost.mean, cost.variance, cost.noise, cost.covariance, chance)

    def is_wanted(self, place: int) -> bool:
        """Whether a place in `measured` may be picked."""
        return place in self._wanted

    @property
    def wanted_rows(self) -> Rows:
        """The rows of the measured points that may be picked, of shape (wanted, axes)."""
        return self.rows[self._wanted]

    def trusted(self) -> list[int]:
        """The places in `measured` of launches that may be picked: all wanted but the doubtful."""
        doubtful = self.doubtful
        return [place for place in self._wanted if place not in doubtful] or self._wanted

    def forecast_measured(self) -> Forecast:
        """The expected log cost of the measured points, in their order."""
        return self.forecast(self.rows)

    def _part_names(self) -> list[PartName]:
        """The parts that are modelled: both apart where launches told them, else their sum."""
        goal = self._goal
        if goal.objective == "request_s" and self.measured:
            observations = [entry.observation for entry in self.measured]
            are_apart = any(_values(goal, o, "prompt") for o in observations) and any(
                _values(goal, o, "generation") for o in observations
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
        values = [_values(self._goal, entry.observation, name) for entry in self.measured]
        places = [place for place, value in enumerate(values) if value is not None]
        rows = self.rows[places]
        logs = np.log([value for value in values if value is not None])
        similar = self._similarity.between(rows, rows)
        order = np.array([self.measured[place].order for place in places], dtype=float)
        posterior = fit_part(design(self._grid, rows, name), logs, similar, order)
        return _Fitted(rows, tuple(places), posterior)

    def _predict(self, name: PartName, rows: Rows) -> Prediction:
        part = self._parts[name]
        similar = self._similarity.between(rows, part.rows)
        told = part.posterior.predict(design(self._grid, rows, name), similar)
        covariance = np.zeros((len(rows), len(self.measured)))
        covariance[:, list(part.places)] = told.covariance
        return replace(told, covariance=covariance)

    def _metric(self, told: dict[PartName, Prediction], metric: Metric) -> Prediction:
        if "request" in told:
            return told["request"]
        if metric in {"pp", "tg"}:
            part = told["prompt" if metric == "pp" else "generation"]
            offset = self._offset if metric == self._goal.objective else 0.0
            return replace(part, mean=part.mean + offset)
        prompt = told["prompt"]
        prompt_s = prompt.mean + math.log(self._goal.prompt_tokens)
        if metric == "ttft":
            return replace(prompt, mean=prompt_s + self._offset)
        generation = told["generation"]
        generation_s = generation.mean + math.log(self._goal.predicted_tokens)
        total = np.logaddexp(prompt_s, generation_s)
        share = np.exp(prompt_s - total)
        known = self._known_share()
        return Prediction(
            total + self._offset,
            share**2 * prompt.variance + (1 - share) ** 2 * generation.variance,
            share**2 * prompt.noise + (1 - share) ** 2 * generation.noise,
            np.outer(share, known) * prompt.covariance
            + np.outer(1 - share, 1 - known) * generation.covariance,
        )

    def _known_share(self) -> Floats:
        """The prompt's share of a request's time at the measured points."""
        goal = self._goal
        prompt_s = self._known["prompt"].mean + math.log(goal.prompt_tokens)
        generation_s = self._known["generation"].mean + math.log(goal.predicted_tokens)
        share: Floats = np.exp(prompt_s - np.logaddexp(prompt_s, generation_s))
        return share

    def _mean_offset(self) -> float:
        """What a cost has beside its parts (sending, sampling), as a logarithm."""
        goal = self._goal
        if "request" in self._parts:
            return 0.0
        found = []
        for observation in (entry.observation for entry in self.measured):
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
