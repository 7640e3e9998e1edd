"""One setting that matters far more than usual is found, although others changed with it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from search.toy_machine import SPACE, ToyMachine

from autofit.search.optuna_study import SearchStudy
from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Point
from autofit.trial.candidate import Candidate

AXES = (*SPACE.axes, Axis("threads", (8, 7, 4)))
SLOW: Point = {
    LAYOUT_AXIS: "single:A",
    HOST_LAYERS_AXIS: 14,
    **{axis.name: axis.values[0] for axis in AXES},
}


@dataclass(slots=True)
class _WaitingThreads(ToyMachine):
    """A machine on which threads on all cores wait for each other."""

    def problem(self) -> Problem:
        return replace(
            ToyMachine.problem(self),
            space=replace(SPACE, axes=AXES),
            candidate_of=lambda point: Candidate(point) if SPACE.allows(point) else None,
        )

    def parts(self, point: Point) -> tuple[float, float]:
        prompt_s, predicted_s = ToyMachine.parts(self, point)
        return (
            (5 * prompt_s, 5 * predicted_s) if point["threads"] == 8 else (prompt_s, predicted_s)
        )


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_setting_that_changed_together_with_the_cause_is_not_blamed(noise):
    """Threads and load mode change at once. The slower load mode does not stay in the best."""
    machine, rng = _WaitingThreads(noise=noise), random.Random(0)
    study = SearchStudy(machine.problem(), seed=0)
    fast = {**SLOW, "threads": 7, "load_mode": "mmap"}
    for point in (SLOW, {**SLOW, HOST_LAYERS_AXIS: 16}, {**SLOW, "ubatch": 1024}, fast):
        study.add(machine.observe(point, rng))
    for _ in range(6):
        proposal = study.ask()
        if proposal is None:
            break
        study.add(machine.observe(proposal.point, rng))

    best = study.ranked()[0].point
    assert best["threads"] != 8
    assert best["load_mode"] == "none"
