"""Points as rows of whole numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from search.toy_machine import SPACE, ToyMachine

from autofit.memory.demand import number
from autofit.search.point_grid import Grid
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis


def _grid() -> Grid:
    return Grid(ToyMachine().problem())


def test_a_point_is_its_row_and_back() -> None:
    """Encoding loses nothing."""
    grid = _grid()

    for rest in SPACE.points():
        point = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 7, **rest}
        row = grid.row_of(point)
        assert row is not None
        assert grid.point_of(row) == point


def test_a_point_of_another_space_has_no_row() -> None:
    """Values and axes that are not there are told apart from those that are."""
    grid = _grid()
    point = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 7, **next(SPACE.points())}

    assert grid.row_of({**point, "ubatch": 777}) is None
    assert grid.row_of({**point, "threads": 4}) is None
    assert grid.row_of({k: v for k, v in point.items() if k != "ubatch"}) is None


def test_combinations_are_those_that_the_constraints_allow() -> None:
    """Every allowed combination of values is there once."""
    rows = _grid().combinations(())

    assert len(rows) == len(list(SPACE.points()))
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_the_points_of_a_table_are_its_only_combinations() -> None:
    """A problem with points of its own has no others."""
    point = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 7, **next(SPACE.points())}
    grid = Grid(replace(ToyMachine().problem(), points=(point,)))

    rows = grid.combinations(())

    assert [grid.point_of(row) for row in rows] == [point]


def test_of_too_many_combinations_those_near_known_ones_are_listed() -> None:
    """A space too large to list is looked at where it matters."""
    axes = tuple(Axis(f"p{i}", tuple(range(8))) for i in range(6))
    space = replace(SPACE, axes=axes, layouts=(), constraints=())
    grid = Grid(replace(ToyMachine().problem(), space=space, layouts=()))

    rows = grid.combinations([(7, 7, 7, 7, 7, 7)])

    assert len(rows) < 5000
    listed = {tuple(row) for row in rows.tolist()}
    assert (7, 7, 7, 7, 7, 7) in listed
    assert (3, 7, 7, 7, 7, 0) in listed


def test_columns_read_values_pins_and_defaults() -> None:
    """A param is read from its axis, else from what is pinned, else from the default."""
    problem = ToyMachine().problem()
    problem = replace(problem, space=replace(problem.space, pinned={"threads": 6}))
    grid = Grid(problem)
    rows = grid.combinations(())[:2]

    assert set(grid.column(rows, "threads", number, 1)) == {6.0}
    assert set(grid.column(rows, "context", number, 4096)) == {4096.0}
    assert set(grid.column(rows, "cache_type_v", lambda v: float(v == "f16"), "f16")) <= {0.0, 1.0}


def test_codes_are_equal_where_the_columns_are() -> None:
    """Rows share a code exactly where they agree in the columns asked for."""
    grid = _grid()
    rows = grid.combinations(())
    places = [2, 4]

    codes = grid.codes(rows, places)

    same_code = codes[:, None] == codes[None, :]
    same_row = (rows[:, None, places] == rows[None, :, places]).all(axis=2)
    assert (same_code == same_row).all()
