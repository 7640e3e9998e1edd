"""The course that a search on a known machine is expected to take, found without a launch."""

from __future__ import annotations

from dataclasses import replace

from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy
from autofit.search.problem import Observation, Problem
from autofit.search.proposer import SurrogateProposer

# A point that is this likely to run is expected to run.
_LIKELY = 0.5


def expected_search(
    problem: Problem, *, seed: int, least_gain: float, most_launches: int
) -> list[Observation]:
    """Return the launches of a search in which each one measures what is expected of it."""
    proposer = SurrogateProposer()
    study = SearchStudy(problem, proposer, seed=seed)
    policy = SearchPolicy(study, least_gain)
    found: list[Observation] = []
    while len(found) < most_launches and (step := policy.next_step()) is not None:
        point = step.proposal.point
        seen = proposer.expect(problem, study.observations, point)
        if study.success_probability(point) < _LIKELY:
            seen = replace(seen, cost=None, exhausted_memory="device")
        found.append(seen)
        if step.fit_only and seen.cost is not None:
            policy.add_fitting(point)
        else:
            study.add(seen)
    return found
