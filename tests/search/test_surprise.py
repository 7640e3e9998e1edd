"""A launch that was far faster than the search can explain."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from search.toy_machine import ToyMachine, tell

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
    """One combination of settings is faster by a factor, which no effect of a setting tells."""

    factor: float = 1.0

    def parts(self, point: Point) -> tuple[float, float]:
        """Seconds for a prompt token and for a generated one, without noise."""
        factor = self.factor if is_faster(point) else 1.0
        prompt_s, predicted_s = ToyMachine.parts(self, point)
        return prompt_s * factor, predicted_s * factor


def is_faster(point: Point) -> bool:
    """Whether a point has the combination."""
    return all(point[name] == START[name] for name in ("ubatch", "cache_type", "load_mode"))


def _searched(machine: ToyMachine, seed: int, chance_factor: float = 1.0) -> SearchStudy:
    """A search told of one launch of the combination after four of its own.

    What that launch measured is multiplied by `chance_factor`.
    """
    study, rng = SearchStudy(machine.problem(), seed=seed), random.Random(seed)
    course = SearchPolicy(study)
    while len(study.observations) < 30 and (step := course.next()) is not None:
        seen = machine.observe(step.proposal.point, rng)
        if step.asks_fit_only and seen.cost is not None:
            course.tell_fits(seen.point)
        else:
            tell(study, seen)
        if len(study.observations) == 4:
            told = machine.observe(START, rng)
            assert None not in (told.cost, told.prompt_s, told.predicted_s)
            parts = [
                value * chance_factor for value in (told.cost, told.prompt_s, told.predicted_s)
            ]
            tell(study, Observation(START, parts[0], None, told.seconds, *parts[1:]))
    return study


@pytest.mark.parametrize("factor", [0.5, 0.8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_really_faster_is_launched_again_and_wins(factor, seed):
    """A search that took it for an outlier ended with what is 1.8 times as slow."""
    machine = SteppedMachine(factor=factor, noise=0.01)
    best = _searched(machine, seed).ranked()[0].point

    assert is_faster(best)
    assert machine.seconds(best) <= machine.best_s() * 1.03


def test_a_launch_that_tells_no_parts_is_taken_as_it_is():
    """A total beside launches that told prompt and generation apart is no reason to stumble."""
    machine = ToyMachine(noise=0.01)
    study, rng = SearchStudy(machine.problem(), seed=0), random.Random(0)
    for _ in range(4):
        tell(study, machine.observe(study.ask().point, rng))

    study.tell(START, 2.0, seconds=12.0)

    assert study.ranked()
    assert study.ask() is not None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_was_faster_by_chance_is_launched_again_and_does_not_win(seed):
    """The second launch tells that the first was luck."""
    machine = ToyMachine(noise=0.01)
    study = _searched(machine, seed, chance_factor=0.5)

    assert machine.seconds(study.ranked()[0].point) <= machine.best_s() * 1.03
