"""An Optuna sampler that proposes a whole candidate at once.

Optuna keeps the trials and their states; which point comes next is the proposer's business.
The search space is flat and fixed for the life of a study: conditional parameters are the
candidate's concern, not the sampler's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autofit.search.problem import Observation, Problem, Proposal, Proposer
from autofit.search.space import HOST_LAYERS_AXIS, Point

# Draws of Optuna's sampler among which one may be worth a launch.
_DRAWS = 16


def distributions(problem: Problem) -> dict[str, BaseDistribution]:
    """The flat search space of a problem in Optuna's terms."""
    found: dict[str, BaseDistribution] = {}
    for axis in problem.axes:
        if axis.name == HOST_LAYERS_AXIS and problem.searches_layouts:
            found[axis.name] = IntDistribution(0, problem.most_host_layers)
        else:
            found[axis.name] = CategoricalDistribution(axis.values)
    return found


def attributes(observation: Observation) -> dict[str, Any]:
    """An observation as user attributes of a trial, its point excepted."""
    return {
        "cost": observation.cost,
        "lacked": observation.lacked,
        "seconds": observation.seconds,
        "prompt_s": observation.prompt_s,
        "predicted_s": observation.predicted_s,
    }


def observations_of(trials: Sequence[FrozenTrial]) -> list[Observation]:
    """What finished trials say; a failed launch is PRUNED and has no cost."""
    return [
        Observation(point=dict(trial.params), **trial.user_attrs)
        for trial in trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    ]


class ProposingSampler(BaseSampler):
    """Asks a proposer for the next point, and Optuna's TPE where the proposer hands over.

    Parameters that no proposal covers fall back to random.
    """

    def __init__(self, problem: Problem, proposer: Proposer, *, seed: int) -> None:
        self.problem = problem
        self._proposer = proposer
        self._random = RandomSampler(seed=seed)
        self._tpe = TPESampler(seed=seed)
        self.last_proposal: Proposal | None = None

    def infer_relative_search_space(
        self,
        study: Study,  # noqa: ARG002 - the interface's
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """The whole space, always the same."""
        return distributions(self.problem)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Ask for the next point; `last_proposal` is None when there is none.

        Here and not in `sample_relative`, which Optuna leaves out where every axis has but
        one value.
        """
        seen = observations_of(study.get_trials(deepcopy=False))
        proposal = self._proposer.propose(self.problem, seen)
        if proposal is not None and proposal.is_open is not None:
            point = self._drawn(study, trial, proposal)
            if point is not None:
                proposal = replace(proposal, point=point, why="the model is contradicted: drawn")
        self.last_proposal = proposal

    def sample_relative(
        self,
        study: Study,  # noqa: ARG002 - the interface's
        trial: FrozenTrial,  # noqa: ARG002
        search_space: Mapping[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The proposed point, empty when there is none."""
        proposal = self.last_proposal
        return {} if proposal is None else {name: proposal.point[name] for name in search_space}

    def _drawn(self, study: Study, trial: FrozenTrial, proposal: Proposal) -> Point | None:
        """A point of Optuna's own that the proposal holds open, None when no draw is one."""
        for _ in range(_DRAWS):
            point = {
                name: self._tpe.sample_independent(study, trial, name, distribution)
                for name, distribution in distributions(self.problem).items()
            }
            if proposal.is_open is not None and proposal.is_open(point):
                return point
        return None

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # noqa: ANN401 - the interface's
        """A random value, for a parameter no proposal covers."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)
