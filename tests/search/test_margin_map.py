"""Margins of thousands of points from a few estimates."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from search.toy_machine import LAYERS, SPACE, ToyMachine

from autofit.search.grid import Grid
from autofit.search.margin_map import MarginMap
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS


def _rows(grid: Grid) -> np.ndarray:
    rows = [
        grid.row_of({LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: hosted, **rest})
        for rest, hosted in itertools.product(SPACE.points(), range(LAYERS + 1))
    ]
    return np.array(rows)


def test_a_few_estimates_tell_the_rest() -> None:
    """Where memory is linear, one estimate for each way it is pulled is enough."""
    machine = ToyMachine()
    grid = Grid(machine.problem())
    margins = MarginMap(grid)
    margins.ask_ends()
    base = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 12, **next(SPACE.points())}
    for change in ({"ubatch": 512}, {"cache_type": "q8_0"}):
        margins.estimate(np.array(grid.row_of({**base, **change})))

    rows = _rows(grid)
    told = margins.margins(rows, "device")

    truth = [machine.room_mib - machine.needed_mib(grid.point_of(row)) for row in rows]
    assert told == pytest.approx(np.array(truth), abs=40.0)
    assert machine.estimates == 4


def test_settings_that_take_no_memory_share_an_estimate() -> None:
    """Batches and load modes are not asked for one by one."""
    machine = ToyMachine()
    grid = Grid(machine.problem())
    margins = MarginMap(grid)
    base = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 12, **next(SPACE.points())}

    for batch in (4096, 2048):
        margins.estimate(np.array(grid.row_of({**base, "batch": batch})))

    assert machine.estimates == 1
    assert margins.is_exact(np.array(grid.row_of({**base, "batch": 2048})))


def test_estimates_that_launches_corrected_are_read_again() -> None:
    """A refresh follows an estimator that has learned."""
    machine = ToyMachine()
    grid = Grid(machine.problem())
    margins = MarginMap(grid)
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
    margins = MarginMap(grid)
    margins.ask_ends()

    assert not margins.has_estimates
    assert np.isnan(margins.margins(_rows(grid), "device")).all()
