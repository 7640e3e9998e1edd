"""Lays a search space over a model and its devices: points to candidates, and do they fit?"""

from __future__ import annotations

from autofit.runtime.argv import find_problem
from autofit.search.problem import Problem
from autofit.search.space import Point
from autofit.trial.candidate import Candidate
from autofit.tuning.situation import Situation


class CandidateMaker:
    """Makes the candidates of a situation's search problem."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation

    def problem(self) -> Problem:
        """The search problem of the situation."""
        return Problem(
            space=self._situation.space,
            layouts=(),
            most_host_layers=0,
            candidate_of=self.candidate_of,
            fit_of=lambda _: None,
        )

    def candidate_of(self, point: Point) -> Candidate | None:
        """A point's candidate, None where the space or the runtime refuses it."""
        situation = self._situation
        if not situation.space.allows(point):
            return None
        known = {
            name: value
            for name, value in situation.space.params_of(point).items()
            if situation.runtime.supports(name)
        }
        candidate = Candidate({**situation.task_params, **known})
        return None if self._is_refused(candidate) else candidate

    def _is_refused(self, candidate: Candidate) -> bool:
        return find_problem(self._situation.runtime, candidate) is not None
