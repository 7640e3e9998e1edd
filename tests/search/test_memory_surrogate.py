"""Margins of thousands of points from a few predictions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from search.toy_machine import LAYERS, SPACE, ToyMachine

from autofit.search.memory_surrogate import MemorySurrogate
from autofit.search.point_grid import PointGrid
from autofit.search.problem import Fit
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.trial.candidate import Candidate


def _rows(grid: PointGrid) -> np.ndarray:
    rows = [
        grid.row_of({LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: hosted, **rest})
        for rest, hosted in itertools.product(SPACE.points(), range(LAYERS + 1))
    ]
    return np.array(rows)


def test_a_few_predictions_give_all_margins() -> None:
    """If memory is linear, one prediction per demand gives every margin to within a layer."""
    machine = ToyMachine()
    grid = PointGrid(machine.problem())
    surrogate = MemorySurrogate(grid)
    surrogate.estimate_ends()

    rows = _rows(grid)
    margins = surrogate.margins(rows, "device")

    truth = [machine.room_mib - machine.needed_mib(grid.point_of(row)) for row in rows]
    too_high = margins - np.array(truth)
    assert too_high.min() > -40.0
    assert too_high.max() < 400.0 + 40.0
    assert machine.estimates == 5


def test_settings_that_need_no_memory_share_a_prediction() -> None:
    """Points that differ in the batch only are predicted once."""
    machine = ToyMachine()
    grid = PointGrid(machine.problem())
    surrogate = MemorySurrogate(grid)
    base = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 12, **next(SPACE.points())}

    for batch in (4096, 2048):
        surrogate.estimate(np.array(grid.row_of({**base, "batch": batch})))

    assert machine.estimates == 1
    assert surrogate.is_exact(np.array(grid.row_of({**base, "batch": 2048})))


def test_calibrated_predictions_are_requested_again() -> None:
    """A refresh uses the predictions as calibrated by launches."""
    machine = ToyMachine()
    grid = PointGrid(machine.problem())
    surrogate = MemorySurrogate(grid)
    surrogate.estimate_ends()
    row = np.array(
        [grid.row_of({LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 0, **next(SPACE.points())})]
    )
    before = surrogate.margins(row, "device")[0]

    machine.error_mib = 700.0
    surrogate.refresh()

    assert surrogate.margins(row, "device")[0] == pytest.approx(before + 700.0)


def test_without_predictions_every_margin_is_unknown() -> None:
    """Margins are nan if nothing can be predicted."""
    grid = PointGrid(ToyMachine(has_estimates=False).problem())
    surrogate = MemorySurrogate(grid)
    surrogate.estimate_ends()

    assert not surrogate.has_estimates
    assert np.isnan(surrogate.margins(_rows(grid), "device")).all()


def test_smaller_demands_are_tried_on_a_layout_without_candidates() -> None:
    """A card without room for an f16 cache is predicted with a narrower one."""
    machine = ToyMachine(room_mib=12000.0, layouts=("balanced", "single:A"))
    problem = machine.problem()

    def candidate_of(point: Point) -> Candidate | None:
        is_impossible = point[LAYOUT_AXIS] == "single:A" and (
            point["cache_type"] == "f16" or int(point[HOST_LAYERS_AXIS]) < LAYERS - 2
        )
        return None if is_impossible else problem.candidate_of(point)

    grid = PointGrid(replace(problem, candidate_of=candidate_of))
    surrogate = MemorySurrogate(grid)
    surrogate.estimate_ends()
    first = next(SPACE.points())
    row = grid.row_of(
        {**first, LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: LAYERS, "cache_type": "q8_0"}
    )

    assert surrogate.margins(np.array([row]), "device")[0] > 0


def test_margins_in_steps_are_not_estimated_too_low() -> None:
    """If margins increase in steps of two layers, a point that fits has no low estimate."""
    machine = ToyMachine()
    problem = machine.problem()

    def fit_of(candidate: Candidate) -> Fit:
        hosted = int(candidate.params[HOST_LAYERS_AXIS])
        steps = {**candidate.params, HOST_LAYERS_AXIS: hosted + hosted % 2}
        needed = machine.needed_mib(steps)
        return Fit(machine.room_mib - needed, needed)

    grid = PointGrid(replace(problem, fit_of=fit_of))
    surrogate = MemorySurrogate(grid)
    surrogate.estimate_ends()
    rows = _rows(grid)
    margins = surrogate.margins(rows, "device")
    truth = np.array([fit_of(Candidate(grid.point_of(row))).margin_mib for row in rows])

    assert (margins[truth >= 0] > -100.0).all()
