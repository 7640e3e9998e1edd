"""An Optuna sampler that proposes a whole candidate at once.

Optuna keeps the trials and their states; which point comes next is the proposer's business.
The search space is flat and fixed for the life of a study: conditional parameters are the
candidate's concern, not the sampler's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autofit.search.problem import Observation, Problem, Proposal, Proposer
from autofit.search.space import HOST_LAYERS_AXIS

COST_ATTR = "cost"
IS_MEMORY_ATTR = "is_memory"
SECONDS_ATTR = "seconds"


def distributions(problem: Problem) -> dict[str, BaseDistribution]:
    """The flat search space of a problem in Optuna's terms."""
    found: dict[str, BaseDistribution] = {}
    for axis in problem.axes:
        if axis.name == HOST_LAYERS_AXIS:
            found[axis.name] = IntDistribution(0, problem.most_host_layers)
        else:
            found[axis.name] = CategoricalDistribution(axis.values)
    return found


def observations_of(trials: Sequence[FrozenTrial]) -> list[Observation]:
    """What finished trials say; a failed launch is PRUNED and has no cost."""
    return [
        Observation(
            point=dict(trial.params),
            cost=trial.user_attrs.get(COST_ATTR),
            is_memory=bool(trial.user_attrs.get(IS_MEMORY_ATTR)),
            seconds=float(trial.user_attrs.get(SECONDS_ATTR, 0.0)),
        )
        for trial in trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    ]


class ProposingSampler(BaseSampler):
    """Asks a proposer for the next point; independent parameters fall back to random."""

    def __init__(self, problem: Problem, proposer: Proposer, *, seed: int) -> None:
        self._problem = problem
        self._proposer = proposer
        self._random = RandomSampler(seed=seed)
        self.last_proposal: Proposal | None = None

    def infer_relative_search_space(
        self,
        study: Study,  # noqa: ARG002 - the interface's
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """The whole space, always the same."""
        return distributions(self._problem)

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,  # noqa: ARG002 - the interface's
        search_space: Mapping[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The proposer's next point; empty, and `last_proposal` None, when it has none."""
        seen = observations_of(study.get_trials(deepcopy=False))
        self.last_proposal = self._proposer(self._problem, seen)
        if self.last_proposal is None:
            return {}
        return {name: self.last_proposal.point[name] for name in search_space}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # noqa: ANN401 - the interface's
        """A random value, for a parameter no proposal covers."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)
