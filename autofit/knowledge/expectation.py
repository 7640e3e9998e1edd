"""Expected rates of candidates that were not launched, from machine knowledge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from autofit.knowledge.knowledge_document import KnownStudy
from autofit.knowledge.study_knowledge import past_studies, planned_launch
from autofit.search.past_studies import MachinePrior
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.search_problem import search_problem
from autofit.session.task import Task
from autofit.trial.candidate import Candidate

# Of a normal distribution, 95% is within this many standard deviations.
_DEVIATIONS = 1.96


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


def _rate(mean: float, sd: float) -> ExpectedRate:
    """Return the rate for a logarithm of seconds per token."""
    return ExpectedRate(*(round(math.exp(k * _DEVIATIONS * sd - mean), 2) for k in (0, -1, 1)))
