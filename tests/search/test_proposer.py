"""What is proposed can be launched."""

from __future__ import annotations

import random
from dataclasses import replace

from search.toy_machine import LAYERS, ToyMachine, tell

from autofit.search.optuna_study import SearchStudy
from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.trial.candidate import Candidate


def _refusing(machine: ToyMachine) -> Problem:
    """Single cards refuse most of their points, as cards that are far too small do."""
    problem = machine.problem()

    def candidate_of(point: Point) -> Candidate | None:
        is_single = str(point[LAYOUT_AXIS]).startswith("single:")
        hosted, ubatch = int(point[HOST_LAYERS_AXIS]), int(point["ubatch"])
        is_lean = point["cache_type"] == "q8_0" and ubatch <= 1024 and hosted >= LAYERS - 1
        return None if is_single and not is_lean else problem.candidate_of(point)

    return replace(problem, candidate_of=candidate_of)


def test_no_point_is_proposed_that_cannot_be() -> None:
    """However many points the layouts refuse, each proposal is one that they do not."""
    machine = ToyMachine(
        room_mib=12000.0, layouts=("single:A", "single:B", "balanced", "single:C")
    )
    problem = _refusing(machine)
    study, rng = SearchStudy(problem, seed=0), random.Random(0)

    proposed = []
    for _ in range(12):
        proposal = study.ask()
        if proposal is None:
            break
        proposed.append(proposal.point)
        tell(study, machine.observe(proposal.point, rng))

    assert len(proposed) > 3
    assert all(problem.candidate_of(point) is not None for point in proposed)
