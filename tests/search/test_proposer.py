"""Proposals: only points that have a candidate."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from search.toy_machine import LAYERS, ToyMachine

from autofit.search.optuna_study import SearchStudy
from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point


def _proposed(machine: ToyMachine, exists: Callable[[Point], bool]) -> list[Point]:
    """Return 12 proposals of a problem in which some points have no candidate."""
    whole = machine.problem()

    def candidate_of(point: Point):
        return whole.candidate_of(point) if exists(point) else None

    problem: Problem = replace(whole, candidate_of=candidate_of)
    study, rng = SearchStudy(problem, seed=0), random.Random(0)
    proposed = []
    for _ in range(12):
        proposal = study.ask()
        if proposal is None:
            break
        proposed.append(proposal.point)
        study.add(machine.observe(proposal.point, rng))
    return proposed


def test_points_without_a_candidate_are_not_proposed() -> None:
    """Single cards that are far too small have a candidate for few of their points."""

    def exists(point: Point) -> bool:
        is_single = str(point[LAYOUT_AXIS]).startswith("single:")
        hosted, ubatch = int(point[HOST_LAYERS_AXIS]), int(point["ubatch"])
        is_small = point["cache_type"] == "q8_0" and ubatch <= 1024 and hosted >= LAYERS - 1
        return not is_single or is_small

    layouts = ("single:A", "single:B", "balanced", "single:C")
    proposed = _proposed(ToyMachine(room_mib=12000.0, layouts=layouts), exists)

    assert len(proposed) > 3
    assert all(exists(point) for point in proposed)


def test_numbers_of_host_layers_without_a_candidate_are_not_proposed() -> None:
    """A layout that has candidates for even numbers only gets proposals of even numbers."""

    def exists(point: Point) -> bool:
        return int(point[HOST_LAYERS_AXIS]) % 2 == 0

    proposed = _proposed(ToyMachine(), exists)

    assert len(proposed) >= 5
    assert all(exists(point) for point in proposed)
