"""The Optuna study of one tune: it lives in memory and is rebuilt from trial files."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import optuna
from optuna.trial import TrialState, create_trial

from autofit.memory.demand import Memory
from autofit.memory.dominance import needing_at_least
from autofit.search.observations import History
from autofit.search.optuna_sampler import (
    ProposingSampler,
    attributes,
    distributions,
    observations_of,
)
from autofit.search.point_grid import Grid
from autofit.search.problem import Observation, Problem, Proposal, Proposer
from autofit.search.proposer import ModelProposer
from autofit.search.space import Point


class SearchStudy:
    """Ask and tell over the points of a problem.

    A launch that failed is told as PRUNED: told as FAIL, a sampler would learn nothing from
    it and propose it again.
    """

    def __init__(self, problem: Problem, proposer: Proposer | None = None, *, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.problem = problem
        self._distributions = distributions(problem)
        self._proposer = proposer or ModelProposer()
        self._sampler = ProposingSampler(problem, self._proposer, seed=seed)
        self.optuna_study = optuna.create_study(sampler=self._sampler, direction="minimize")
        self._open: optuna.Trial | None = None

    @property
    def observations(self) -> list[Observation]:
        """Everything told so far."""
        return observations_of(self.optuna_study.get_trials(deepcopy=False))

    def ask(self) -> Proposal | None:
        """The next point with what it is expected to bring, None when there is none left.

        The trial it opens is closed by the next `tell` of that point.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            trial = self.optuna_study.ask(self._distributions)
        proposal = self._sampler.last_proposal
        if proposal is None:
            self.optuna_study.tell(trial, state=TrialState.FAIL)
            return None
        self._open = trial
        return proposal

    def ranked(self) -> list[Observation]:
        """The launches that ran, the best first, noise taken out as far as it is known."""
        return self._proposer.ranked(self.problem, self.observations)

    def doubtful(self) -> list[Observation]:
        """What may be picked and was launched once, with a cost that the others do not explain."""
        return self._proposer.doubtful(self.problem, self.observations)

    def fallen(self) -> list[Point]:
        """Points that ran and cannot be picked: they or their like wanted a device later."""
        grid = Grid(self.problem)
        return [grid.point_of(row) for row in History(grid, self.observations).fallen]

    def is_ruled_out(self, point: Point) -> bool:
        """Whether the point needs at least as much of a device as one that failed for want of it.

        Of the host's memory others may have taken what was wanted.
        """
        grid = Grid(self.problem)
        row = grid.row_of(point)
        if row is None:
            return False
        rows, lacking = np.array([row]), History(grid, self.observations).lacking("device")
        return any(needing_at_least(grid.axes, rows, failed, "device").any() for failed in lacking)

    def chance(self, point: Point) -> float:
        """How likely a point that was not tried is to run."""
        return self._proposer.chance(self.problem, self.observations, point)

    def want_only(self, is_wanted: Callable[[Point], bool]) -> None:
        """Propose and rank only such points from now on; what the others showed still tells."""
        self.drop()
        self.problem = replace(self.problem, is_wanted=is_wanted)
        self._sampler.problem = self.problem

    def drop(self) -> None:
        """Close the open trial without an answer."""
        if self._open is not None:
            self.optuna_study.tell(self._open, state=TrialState.FAIL)
            self._open = None

    def tell(
        self,
        point: Point,
        cost: float | None,
        *,
        lacked: Memory | None = None,
        seconds: float = 0.0,
        prompt_s: float | None = None,
        predicted_s: float | None = None,
    ) -> None:
        """Add what a launch showed, whether it was asked for or not.

        The arguments are those of `Observation`.
        """
        observation = Observation(dict(point), cost, lacked, seconds, prompt_s, predicted_s)
        if self._open is not None and dict(self._open.params) == observation.point:
            for name, value in attributes(observation).items():
                self._open.set_user_attr(name, value)
            if cost is None:
                self.optuna_study.tell(self._open, state=TrialState.PRUNED)
            else:
                self.optuna_study.tell(self._open, cost)
            self._open = None
            return
        self.optuna_study.add_trial(
            create_trial(
                state=TrialState.PRUNED if cost is None else TrialState.COMPLETE,
                value=cost,
                params=dict(observation.point),
                distributions=self._distributions,
                user_attrs=attributes(observation),
            )
        )
