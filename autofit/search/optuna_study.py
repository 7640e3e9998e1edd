"""The Optuna study of one tune: it is kept in memory and rebuilt from trial files.

Optuna stores the trials and their states. The proposer selects the points, through a sampler
that returns a whole point at once. The search space is flat and does not change during a study;
conditional parameters are resolved when a candidate is made from a point.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from autofit.search.observations import LaunchHistory
from autofit.search.point_grid import PointGrid
from autofit.search.problem import Observation, Problem, Proposal
from autofit.search.proposer import SurrogateProposer
from autofit.search.space import HOST_LAYERS_AXIS, Point, Space

# Draws of Optuna's TPE until one is accepted.
_MOST_DRAWS = 16


class SearchStudy:
    """The observations of a search, and the proposals that follow from them.

    A failed launch is stored as PRUNED. Samplers ignore a trial that is stored as FAIL, and
    would propose its point again. `distributions` are the axes of the space.
    """

    def __init__(
        self, problem: Problem, proposer: SurrogateProposer | None = None, *, seed: int
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.problem = problem
        self.distributions = _distributions(problem)
        self._proposer = proposer or SurrogateProposer()
        self._sampler = _ProposalSampler(problem, self._proposer, seed=seed)
        self._study = optuna.create_study(sampler=self._sampler, direction="minimize")
        self._open: optuna.Trial | None = None

    @property
    def pending(self) -> Sequence[Point]:
        """The points that are being launched elsewhere: they are not proposed again."""
        return self._sampler.pending

    @pending.setter
    def pending(self, points: Sequence[Point]) -> None:
        self._sampler.pending = points

    @property
    def observations(self) -> list[Observation]:
        """All observations so far."""
        return _observations_of(self._study.get_trials(deepcopy=False))

    def ask(self) -> Proposal | None:
        """Return the next proposal, or None if no launch is worth it.

        This opens a trial, which the next observation of the point closes.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            trial = self._study.ask(self.distributions)
        proposal = self._sampler.last_proposal
        if proposal is None:
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        self._open = trial
        return proposal

    def add(self, observation: Observation) -> None:
        """Add an observation, whether its point was proposed or not."""
        state = TrialState.PRUNED if observation.cost is None else TrialState.COMPLETE
        if self._open is not None and dict(self._open.params) == dict(observation.point):
            for name, value in _attributes(observation).items():
                self._open.set_user_attr(name, value)
            self._study.tell(self._open, observation.cost, state=state)
            self._open = None
            return
        self._study.add_trial(
            create_trial(
                state=state,
                value=observation.cost,
                params=dict(observation.point),
                distributions=self.distributions,
                user_attrs=_attributes(observation),
            )
        )

    def cancel(self) -> None:
        """Close the open trial without an observation."""
        if self._open is not None:
            self._study.tell(self._open, state=TrialState.FAIL)
            self._open = None

    def ranked(self) -> list[Observation]:
        """Return the observations that may be picked, the best first."""
        return self._proposer.ranked(self.problem, self.observations)

    def is_near_copy(self, point: Point, other: Point) -> bool:
        """Return whether the difference between two points is too small to matter."""
        return PointGrid(self.problem).is_near_copy(point, other)

    def outliers(self) -> list[Observation]:
        """Return eligible observations of one launch whose cost the others do not explain."""
        return self._proposer.outliers(self.problem, self.observations)

    @property
    def contradicts_knowledge(self) -> bool:
        """True if launches show that what earlier studies have shown does not hold any more."""
        if not self.problem.past_studies:
            return False
        return self._proposer.contradicts_knowledge(self.problem, self.observations)

    def success_probability(self, point: Point) -> float:
        """Return the probability that a point runs."""
        return self._proposer.success_probability(self.problem, self.observations, point)

    def failed_proof(self) -> list[Point]:
        """Return points that ran but are dominated by an out-of-memory failure at full context."""
        grid = PointGrid(self.problem)
        return [grid.point_of(row) for row in LaunchHistory(grid, self.observations).failed_proof]

    def is_ruled_out(self, point: Point) -> bool:
        """Return whether a point needs at least as much device memory as one that ran out of it.

        Host memory rules nothing out: another program may have taken it.
        """
        grid = PointGrid(self.problem)
        row = grid.row_of(point)
        if row is None:
            return False
        rows = np.array([row])
        if grid.work is not None:
            grid.work.learn(row)
        failed = LaunchHistory(grid, self.observations).out_of_memory("device")
        return any(grid.needing_at_least("device", rows, other).any() for other in failed)

    def search_in(self, space: Space) -> None:
        """Search another space. There must be no observation yet."""
        self.problem = replace(self.problem, space=space)
        self.distributions = _distributions(self.problem)
        self._sampler.problem = self.problem

    def restrict_to(self, is_eligible: Callable[[Point], bool]) -> None:
        """Propose and rank only eligible points from now on; all observations stay data."""
        self.cancel()
        self.problem = replace(self.problem, is_eligible=is_eligible)
        self._sampler.problem = self.problem


class _ProposalSampler(BaseSampler):
    """A sampler that returns the proposer's point, or a point of Optuna's TPE that it accepts.

    A parameter without a proposed value gets a random one.
    """

    def __init__(self, problem: Problem, proposer: SurrogateProposer, *, seed: int) -> None:
        self.problem = problem
        self._proposer = proposer
        self._random = RandomSampler(seed=seed)
        self._tpe = TPESampler(seed=seed)
        self.last_proposal: Proposal | None = None
        self.pending: Sequence[Point] = ()

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002 - defined by Optuna
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """Return the whole space, which is always the same."""
        return _distributions(self.problem)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Set `last_proposal` to the next proposal, or to None if there is none.

        Optuna does not call `sample_relative` if every axis has a single value, so this is done
        here.
        """
        observations = _observations_of(study.get_trials(deepcopy=False))
        proposal = self._proposer.propose(self.problem, observations, self.pending)
        if proposal is not None and proposal.accepts is not None:
            point = self._draw(study, trial, proposal.accepts)
            if point is not None:
                why = "random draw: the model does not explain the launches"
                proposal = replace(proposal, point=point, why=why)
        self.last_proposal = proposal

    def sample_relative(
        self,
        study: optuna.Study,  # noqa: ARG002 - defined by Optuna
        trial: FrozenTrial,  # noqa: ARG002
        search_space: Mapping[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Return the proposed point, or an empty one if there is no proposal."""
        proposal = self.last_proposal
        return {} if proposal is None else {name: proposal.point[name] for name in search_space}

    def _draw(
        self, study: optuna.Study, trial: FrozenTrial, accepts: Callable[[Point], bool]
    ) -> Point | None:
        """Return a point drawn by TPE that is accepted, or None if no draw is."""
        for _ in range(_MOST_DRAWS):
            point = {
                name: self._tpe.sample_independent(study, trial, name, distribution)
                for name, distribution in _distributions(self.problem).items()
            }
            if accepts(point):
                return point
        return None

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # noqa: ANN401 - defined by Optuna
        """Return a random value, for a parameter without a proposed one."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)


def _distributions(problem: Problem) -> dict[str, BaseDistribution]:
    """Return the search space of a problem as Optuna's distributions."""
    found: dict[str, BaseDistribution] = {}
    for axis in problem.axes:
        if axis.name == HOST_LAYERS_AXIS and problem.searches_layouts:
            found[axis.name] = IntDistribution(0, problem.most_host_layers)
        else:
            found[axis.name] = CategoricalDistribution(axis.values)
    return found


def _attributes(observation: Observation) -> dict[str, Any]:
    """Return an observation without its point, as user attributes of a trial."""
    names = [field.name for field in fields(observation) if field.name != "point"]
    return {name: getattr(observation, name) for name in names}


def _observations_of(trials: Sequence[FrozenTrial]) -> list[Observation]:
    """Return the observations of finished trials; a failed launch is PRUNED and has no cost."""
    return [
        Observation(point=dict(trial.params), **trial.user_attrs)
        for trial in trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    ]
