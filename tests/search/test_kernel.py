"""How alike points are, and what they share."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from search.toy_machine import LAYERS, SPACE, ToyMachine

from autofit.search.kernel import Kernel
from autofit.search.point_grid import Grid
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point

GRID = Grid(ToyMachine().problem())
BASE = {
    LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 12, "ubatch": 2048, "batch": 4096,
    "cache_type": "f16", "load_mode": "none",
}  # fmt: skip
POINTS = [
    {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: hosted, **rest}
    for hosted in range(LAYERS + 1)
    for rest in SPACE.points()
]


def _alike(one: Point, other: Point) -> float:
    rows = [np.array([GRID.row_of(point)]) for point in (one, other)]
    return float(Kernel(GRID).between(*rows)[0, 0])


def test_a_point_is_itself() -> None:
    """Nothing is more alike than the same."""
    assert _alike(BASE, BASE) == 1.0


def test_what_seldom_matters_keeps_points_close() -> None:
    """Another batch is nearly a copy; another ubatch, cache or load mode is not."""
    batch = _alike(BASE, {**BASE, "batch": 2048})

    assert batch > 0.9
    for change in ({"ubatch": 1024}, {"cache_type": "q8_0"}, {"load_mode": "mmap"}):
        assert _alike(BASE, {**BASE, **change}) < batch - 0.2


def test_a_cliff_may_lie_between_neighbours() -> None:
    """A point keeps something that one host layer more or fewer does not share."""
    near = _alike(BASE, {**BASE, HOST_LAYERS_AXIS: 13})

    assert 0.7 < near < 0.8
    assert near > _alike(BASE, {**BASE, HOST_LAYERS_AXIS: 16})


@given(st.lists(st.integers(0, len(POINTS) - 1), min_size=2, max_size=12, unique=True))
def test_similarities_are_covariances(places: list[int]) -> None:
    """Of any points they make a matrix that a belief may have."""
    rows = np.array([GRID.row_of(POINTS[place]) for place in places])

    matrix = Kernel(GRID).between(rows, rows)

    assert np.allclose(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix).min() > -1e-9
