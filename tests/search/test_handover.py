"""Searches of machines that the model cannot explain go on with Optuna's TPE."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from search.toy_machine import ToyMachine, tell

from autofit.search.optuna_study import SearchStudy
from autofit.search.problem import Observation, Problem
from autofit.search.space import HOST_LAYERS_AXIS, Point
from autofit.trial.candidate import Candidate

_DRAWN = "the model is contradicted: drawn"


@dataclass(slots=True)
class _Arbitrary(ToyMachine):
    """Every point has a speed of its own that nothing else tells."""

    def parts(self, point: Point) -> tuple[float, float]:
        rng = random.Random(repr(sorted(point.items())))
        prompt_s, predicted_s = ToyMachine.parts(self, point)
        return prompt_s * 10 ** rng.uniform(-2, 2), predicted_s * 10 ** rng.uniform(-2, 2)


def _asked(machine: ToyMachine, problem: Problem, most: int) -> list[tuple[Point, str]]:
    study = SearchStudy(problem, seed=0)
    rng = random.Random(0)
    asked = []
    for _ in range(most):
        proposal = study.ask()
        if proposal is None:
            break
        asked.append((proposal.point, proposal.why))
        tell(study, machine.observe(proposal.point, rng))
    return asked


def test_what_nothing_explains_is_searched_by_tpe() -> None:
    """Draws take over, and only new points that probably fit are drawn."""
    machine = _Arbitrary()

    asked = _asked(machine, machine.problem(), 20)

    drawn = [point for point, why in asked if why == _DRAWN]
    before = [point for point, why in asked if why != _DRAWN]
    assert len(drawn) >= 3
    assert sum(not machine.fits(point) for point in drawn) <= len(drawn) / 3
    assert all(point not in before[:6] for point in drawn)


def test_a_noisy_machine_is_no_contradiction() -> None:
    """Noise is noise: the model goes on proposing."""
    machine = ToyMachine(noise=0.25)

    asked = _asked(machine, machine.problem(), 16)

    assert all(why != _DRAWN for _, why in asked)


def test_what_cannot_be_made_is_never_proposed() -> None:
    """A layout that has no candidate for some numbers of host layers is asked for the others."""
    machine = ToyMachine()

    def candidate_of(point: Point) -> Candidate | None:
        is_odd = int(point[HOST_LAYERS_AXIS]) % 2
        return None if is_odd else whole.candidate_of(point)

    whole = machine.problem()
    asked = _asked(machine, replace(whole, candidate_of=candidate_of), 12)

    assert len(asked) >= 5
    assert all(int(point[HOST_LAYERS_AXIS]) % 2 == 0 for point, _ in asked)


def test_what_was_drawn_is_told_like_any_other() -> None:
    """A drawn point closes its own trial."""
    machine = _Arbitrary()
    study = SearchStudy(machine.problem(), seed=1)
    rng = random.Random(1)
    told: list[Observation] = []
    for _ in range(14):
        proposal = study.ask()
        assert proposal is not None
        told.append(machine.observe(proposal.point, rng))
        tell(study, told[-1])

    assert [seen.point for seen in study.observations] == [seen.point for seen in told]
