"""Launches that were much faster than the model explains."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from search.toy_machine import ToyMachine, add_launch

from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy
from autofit.search.problem import Observation
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point

START: Point = {
    LAYOUT_AXIS: "single:A",
    HOST_LAYERS_AXIS: 10,
    "ubatch": 1024,
    "batch": 4096,
    "cache_type": "f16",
    "load_mode": "none",
}


@dataclass(slots=True)
class SteppedMachine(ToyMachine):
    """A machine on which one combination of settings is faster by a factor."""

    factor: float = 1.0

    def parts(self, point: Point) -> tuple[float, float]:
        """Return the seconds per prompt token and per generated token, without noise."""
        factor = self.factor if is_faster(point) else 1.0
        prompt_s, predicted_s = ToyMachine.parts(self, point)
        return prompt_s * factor, predicted_s * factor


def is_faster(point: Point) -> bool:
    """Return whether a point has the faster combination."""
    return all(point[name] == START[name] for name in ("ubatch", "cache_type", "load_mode"))


def _search(machine: ToyMachine, seed: int, error: float = 1.0) -> SearchStudy:
    """Return a search that gets one launch of the combination after four of its own.

    The measurements of that launch are multiplied by `error`.
    """
    study, rng = SearchStudy(machine.problem(), seed=seed), random.Random(seed)
    policy = SearchPolicy(study)
    while len(study.observations) < 30 and (step := policy.next_step()) is not None:
        add_launch(policy, step, machine.observe(step.proposal.point, rng))
        if len(study.observations) == 4:
            seen = machine.observe(START, rng)
            assert None not in (seen.cost, seen.prompt_s, seen.predicted_s)
            values = [value * error for value in (seen.cost, seen.prompt_s, seen.predicted_s)]
            study.add(Observation(START, values[0], None, seen.seconds, *values[1:]))
    return study


@pytest.mark.parametrize("factor", [0.5, 0.8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_outlier_that_is_faster_is_launched_again_and_wins(factor, seed):
    """Without a second launch the search would end with a point that is 1.8 times as slow."""
    machine = SteppedMachine(factor=factor, noise=0.01)
    best = _search(machine, seed).ranked()[0].point

    assert is_faster(best)
    assert machine.seconds(best) <= machine.best_s() * 1.03


def test_a_launch_without_the_times_of_its_parts_is_accepted():
    """A total cost may follow launches that measured prompt and generation apart."""
    machine = ToyMachine(noise=0.01)
    study, rng = SearchStudy(machine.problem(), seed=0), random.Random(0)
    for _ in range(4):
        study.add(machine.observe(study.ask().point, rng))

    study.add(Observation(START, 2.0, seconds=12.0))

    assert study.ranked()
    assert study.ask() is not None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_outlier_that_was_faster_by_chance_does_not_win(seed):
    """A second launch shows the true speed."""
    machine = ToyMachine(noise=0.01)
    study = _search(machine, seed, error=0.5)

    assert machine.seconds(study.ranked()[0].point) <= machine.best_s() * 1.03
