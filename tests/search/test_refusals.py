"""Refusals: values and combinations that a runtime does not accept are recognized early."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from search.toy_machine import SPACE, ToyMachine

from autofit.search.kernel import Kernel
from autofit.search.observations import LaunchHistory
from autofit.search.optuna_study import SearchStudy
from autofit.search.point_grid import PointGrid
from autofit.search.problem import Observation
from autofit.search.refusals import probability_without_refusal
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Point
from autofit.trial.candidate import Candidate

AXES = (*SPACE.axes, Axis("op_offload", (True, False)), Axis("moe_cache_mib", (0, 1024, 2048)))
PROBLEM = replace(
    ToyMachine().problem(),
    space=replace(SPACE, axes=AXES),
    candidate_of=lambda point: Candidate(point) if SPACE.allows(point) else None,
)
GRID = PointGrid(PROBLEM)
USUAL: Point = {
    LAYOUT_AXIS: "single:A",
    HOST_LAYERS_AXIS: 10,
    **{axis.name: axis.values[0] for axis in AXES},
}
BOTH = {**USUAL, "op_offload": False, "moe_cache_mib": 1024}


def probability(point: Point, failed: list[Point], ran: list[Point], *, together=True) -> float:
    """Return the probability that a point is not refused after some launches."""
    seen = [Observation(one, None, is_combination=together) for one in failed]
    history = LaunchHistory(GRID, [*seen, *(Observation(one, 5.0) for one in ran)])
    rows, known = (
        np.array([GRID.row_of(one) for one in points]).reshape(-1, len(GRID.axes))
        for points in ([point], ran)
    )
    found = probability_without_refusal(GRID, Kernel(GRID), rows, history.failed_otherwise, known)
    return float(found[0])


def test_each_of_two_values_stays_likely_if_the_runtime_refuses_both_together():
    """The same pair in other strength is unlikely, and one value without the other is not."""
    alone = {**USUAL, "op_offload": False}

    assert probability({**BOTH, "moe_cache_mib": 2048}, [BOTH], [USUAL]) < 0.3
    assert probability(alone, [BOTH], [USUAL]) > 0.5
    assert probability({**USUAL, "moe_cache_mib": 1024}, [BOTH], [USUAL, alone]) > 0.3
    assert probability({**BOTH, "ubatch": 512}, [BOTH], [USUAL, alone]) < 0.5


def test_a_value_that_never_ran_is_suspected_alone_otherwise():
    """Without a word of a combination, the value that is in all failures does not run."""
    ran = [USUAL, {**USUAL, "op_offload": False}]
    failed = [{**USUAL, "moe_cache_mib": 1024}, BOTH]

    assert probability({**USUAL, "moe_cache_mib": 2048}, failed, ran, together=False) < 0.3
    assert probability({**USUAL, "ubatch": 512}, failed, ran, together=False) > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_a_refused_combination_costs_few_launches(seed):
    """Both values alone are fast, so the search wants them together, which is refused."""
    machine, rng = ToyMachine(), random.Random(seed)
    study, refused = SearchStudy(PROBLEM, seed=seed), 0
    for _ in range(12):
        proposal = study.ask()
        if proposal is None:
            break
        point = proposal.point
        if not point["op_offload"] and point["moe_cache_mib"]:
            refused += 1
            study.add(Observation(point, None, seconds=0.3, is_combination=True))
        else:
            study.add(machine.observe(point, rng))

    assert refused <= 3
