"""Expectations from machine knowledge: rates without a launch, and the course of a search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from autofit.knowledge.knowledge_document import KnownModel, KnownStudy
from autofit.knowledge.study_knowledge import past_studies, planned_launch
from autofit.search.expected_search import expected_search
from autofit.search.past_studies import MachinePrior
from autofit.search.problem import ModelTraffic, Problem
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.search_problem import search_problem
from autofit.session.task import Task
from autofit.text_format import duration
from autofit.trial.candidate import Candidate

# Of a normal distribution, 95% is within this many standard deviations.
_DEVIATIONS = 1.96
# The requests of a launch of the search: a proof of fit and two repeats.
_REQUESTS = 3


@dataclass(frozen=True, slots=True)
class ExpectedRate:
    """A rate in tokens per second: the median and a 95% interval of what is expected."""

    median: float
    low: float
    high: float

    @property
    def factor(self) -> float:
        """The largest plausible error of the median, as a factor."""
        return self.high / self.median


@dataclass(frozen=True, slots=True)
class ExpectedRates:
    """The expected rates of a candidate; they were not measured."""

    pp_per_s: ExpectedRate
    tg_per_s: ExpectedRate

    def to_dict(self) -> dict[str, Any]:
        """Return the rates as JSON data."""
        return asdict(self)


def expected_rates(
    task: Task, known: Sequence[KnownStudy], candidates: Sequence[Candidate], *, now: float
) -> list[ExpectedRates | None]:
    """Return what earlier studies on the machine let expect of each candidate, None if nothing."""
    past = past_studies(task, known, now=now)
    launches = [planned_launch(task, one) if past else None for one in candidates]
    placed = [one for one in launches if one is not None]
    if not placed:
        return [None] * len(candidates)
    problem = search_problem(CandidateFactory(task), task.memory_model())
    prior = MachinePrior(replace(problem, past_studies=past))
    pp, tg = (
        [
            _rate(float(mean), float(sd))
            for mean, sd in zip(*prior.expect(placed, part), strict=True)
        ]
        for part in ("prompt", "generation")
    )
    rates = iter([ExpectedRates(*pair) for pair in zip(pp, tg, strict=True)])
    return [None if one is None else next(rates) for one in launches]


def expected_course(
    problem: Problem,
    known: Sequence[KnownStudy],
    *,
    seed: int,
    least_gain: float,
    most_launches: int,
) -> str:
    """Return a sentence about the launches and the time that a search is expected to take.

    The baseline counts as one launch.
    """
    found = expected_search(
        problem, seed=seed, least_gain=least_gain, most_launches=most_launches - 1
    )
    costs = [one.cost or 0.0 for one in found]
    size = _bytes_of(problem.traffic)
    loads = [
        launch.load_s * size / _bytes_of(study.model)
        for study in known
        for launch in study.launches
        if launch.load_s is not None
    ]
    load_s = median(loads) if loads else 0.0
    request_s = _REQUESTS * (sum(costs) + max(costs, default=0.0))
    count = len(found) + 1
    return (
        f"expected: about {count} launches and {duration(count * load_s + request_s)} until the "
        "rounds"
    )


def _bytes_of(model: KnownModel | ModelTraffic) -> float:
    return model.layers * model.movable_bytes + model.fixed_read_bytes


def _rate(mean: float, sd: float) -> ExpectedRate:
    """Return the rate for a logarithm of seconds per token."""
    return ExpectedRate(*(round(math.exp(k * _DEVIATIONS * sd - mean), 2) for k in (0, -1, 1)))
