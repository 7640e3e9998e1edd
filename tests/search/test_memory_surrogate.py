"""Margins of thousands of points from a few estimates."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from search.toy_machine import LAYERS, SPACE, ToyMachine

from autofit.search.memory_surrogate import MemorySurrogate
from autofit.search.point_grid import Grid
from autofit.search.problem import Fit
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.trial.candidate import Candidate


def _rows(grid: Grid) -> np.ndarray:
    rows = [
        grid.row_of({LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: hosted, **rest})
        for rest, hosted in itertools.product(SPACE.points(), range(LAYERS + 1))
    ]
    return np.array(rows)


def test_a_few_estimates_tell_the_rest() -> None:
    """Where memory is linear, one estimate for each way it is pulled tells it to a layer."""
    machine = ToyMachine()
    grid = Grid(machine.problem())
    margins = MemorySurrogate(grid)
    margins.ask_ends()

    rows = _rows(grid)
    told = margins.margins(rows, "device")

    truth = [machine.room_mib - machine.needed_mib(grid.point_of(row)) for row in rows]
    too_high = told - np.array(truth)
    assert too_high.min() > -40.0
    assert too_high.max() < 400.0 + 40.0
    assert machine.estimates == 5


def test_settings_that_take_no_memory_share_an_estimate() -> None:
    """Batches and load modes are not asked for one by one."""
    machine = ToyMachine()
    grid = Grid(machine.problem())
    margins = MemorySurrogate(grid)
    base = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 12, **next(SPACE.points())}

    for batch in (4096, 2048):
        margins.estimate(np.array(grid.row_of({**base, "batch": batch})))

    assert machine.estimates == 1
    assert margins.is_exact(np.array(grid.row_of({**base, "batch": 2048})))


def test_estimates_that_launches_corrected_are_read_again() -> None:
    """A refresh follows an estimator that has learned."""
    machine = ToyMachine()
    grid = Grid(machine.problem())
    margins = MemorySurrogate(grid)
    margins.ask_ends()
    row = np.array(
        [grid.row_of({LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 0, **next(SPACE.points())})]
    )
    before = margins.margins(row, "device")[0]

    machine.error_mib = 700.0
    margins.refresh()

    assert margins.margins(row, "device")[0] == pytest.approx(before + 700.0)


def test_nothing_is_told_where_nothing_is_estimated() -> None:
    """Without an estimator every margin is unknown."""
    grid = Grid(ToyMachine(has_estimates=False).problem())
    margins = MemorySurrogate(grid)
    margins.ask_ends()

    assert not margins.has_estimates
    assert np.isnan(margins.margins(_rows(grid), "device")).all()


def test_a_card_that_holds_only_narrow_caches_is_known_to_hold_them() -> None:
    """A layout that refuses the first values altogether is asked for with leaner ones."""
    machine = ToyMachine(room_mib=12000.0, layouts=("balanced", "single:A"))
    problem = machine.problem()

    def candidate_of(point: Point) -> Candidate | None:
        is_refused = point[LAYOUT_AXIS] == "single:A" and (
            point["cache_type"] == "f16" or int(point[HOST_LAYERS_AXIS]) < LAYERS - 2
        )
        return None if is_refused else problem.candidate_of(point)

    grid = Grid(replace(problem, candidate_of=candidate_of))
    margins = MemorySurrogate(grid)
    margins.ask_ends()
    first = next(SPACE.points())
    row = grid.row_of(
        {**first, LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: LAYERS, "cache_type": "q8_0"}
    )

    assert margins.margins(np.array([row]), "device")[0] > 0


def test_a_margin_that_goes_in_steps_is_not_told_too_low_near_the_boundary() -> None:
    """Layers are whole and the tightest device counts: what fits is never told as far from it."""
    machine = ToyMachine()
    problem = machine.problem()

    def fit_of(candidate: Candidate) -> Fit:
        hosted = int(candidate.params[HOST_LAYERS_AXIS])
        steps = {**candidate.params, HOST_LAYERS_AXIS: hosted + hosted % 2}
        needed = machine.needed_mib(steps)
        return Fit(machine.room_mib - needed, needed)

    grid = Grid(replace(problem, fit_of=fit_of))
    margins = MemorySurrogate(grid)
    margins.ask_ends()
    rows = _rows(grid)
    told = margins.margins(rows, "device")
    truth = np.array([fit_of(Candidate(grid.point_of(row))).margin_mib for row in rows])

    assert (told[truth >= 0] > -100.0).all()
