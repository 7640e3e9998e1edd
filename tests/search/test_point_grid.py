"""Points as rows of integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from search.toy_machine import SPACE, ToyMachine

from autofit.memory.demand import number
from autofit.search.point_grid import PointGrid
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis


def _grid() -> PointGrid:
    return PointGrid(ToyMachine().problem())


def test_a_row_converts_back_to_its_point() -> None:
    """The point of the row of a point is the point."""
    grid = _grid()

    for rest in SPACE.points():
        point = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 7, **rest}
        row = grid.row_of(point)
        assert row is not None
        assert grid.point_of(row) == point


def test_a_point_of_another_space_has_no_row() -> None:
    """An unknown value, an unknown axis and a missing axis give no row."""
    grid = _grid()
    point = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 7, **next(SPACE.points())}

    assert grid.row_of({**point, "ubatch": 777}) is None
    assert grid.row_of({**point, "threads": 4}) is None
    assert grid.row_of({k: v for k, v in point.items() if k != "ubatch"}) is None


def test_combinations_satisfy_the_constraints() -> None:
    """Every allowed combination is listed once."""
    rows = _grid().combinations(())

    assert len(rows) == len(list(SPACE.points()))
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_the_points_of_a_table_are_its_only_combinations() -> None:
    """A problem with a list of points has no others."""
    point = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 7, **next(SPACE.points())}
    grid = PointGrid(replace(ToyMachine().problem(), points=(point,)))

    rows = grid.combinations(())

    assert [grid.point_of(row) for row in rows] == [point]


def test_settings_without_effect_keep_their_first_value() -> None:
    """Without host layers points that differ in threads alone are one."""
    problem = ToyMachine().problem()
    threads = Axis("threads", (8, 4))
    grid = PointGrid(replace(problem, space=replace(SPACE, axes=(*SPACE.axes, threads))))
    point = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 0, **next(SPACE.points())}
    rows = np.array(
        [
            grid.row_of({**point, HOST_LAYERS_AXIS: layers, "threads": count})
            for layers in (0, 7)
            for count in (8, 4)
        ]
    )

    assert grid.sets_only_what_acts(rows).tolist() == [True, False, True, True]
    assert [grid.is_eligible(row) for row in rows] == [True, False, True, True]


def test_of_too_many_combinations_a_sample_is_listed() -> None:
    """The sample contains the neighbours of known points."""
    axes = tuple(Axis(f"p{i}", tuple(range(8))) for i in range(6))
    space = replace(SPACE, axes=axes, layouts=(), constraints=())
    grid = PointGrid(replace(ToyMachine().problem(), space=space, layouts=()))

    rows = grid.combinations([(7, 7, 7, 7, 7, 7)])

    assert len(rows) < 5000
    listed = {tuple(row) for row in rows.tolist()}
    assert (7, 7, 7, 7, 7, 7) in listed
    assert (3, 7, 7, 7, 7, 0) in listed


def test_numbers_of_axes_pinned_values_and_defaults() -> None:
    """A value is that of the axis, else the pinned one, else the default."""
    problem = ToyMachine().problem()
    problem = replace(problem, space=replace(problem.space, pinned={"threads": 6}))
    grid = PointGrid(problem)
    rows = grid.combinations(())[:2]

    assert set(grid.numbers(rows, "threads", number, 1)) == {6.0}
    assert set(grid.numbers(rows, "context", number, 4096)) == {4096.0}
    assert set(grid.numbers(rows, "cache_type_v", lambda v: float(v == "f16"), "f16")) <= {
        0.0,
        1.0,
    }


def test_codes_are_equal_if_the_columns_are() -> None:
    """Rows have the same code exactly if the given columns are equal."""
    grid = _grid()
    rows = grid.combinations(())
    columns = [2, 4]

    codes = grid.codes(rows, columns)

    same_code = codes[:, None] == codes[None, :]
    same_row = (rows[:, None, columns] == rows[None, :, columns]).all(axis=2)
    assert (same_code == same_row).all()


def test_the_largest_space_has_few_combinations() -> None:
    """Many values of many axes are sampled too, with the start and values of every axis."""
    axes = tuple(Axis(f"p{i}", tuple(range(256))) for i in range(64))
    problem = replace(ToyMachine().problem(), space=replace(SPACE, axes=axes, constraints=()))
    grid = PointGrid(problem)

    rows = grid.combinations([[0] * len(grid.axes)])

    assert 2000 < len(rows) <= 4000
    assert all(len(np.unique(column)) > 1 for column in rows.T[-64:])
