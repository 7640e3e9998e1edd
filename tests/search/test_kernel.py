"""The kernel: correlations of points."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from search.toy_machine import LAYERS, SPACE, ToyMachine

from autofit.search.kernel import Kernel
from autofit.search.point_grid import PointGrid
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point

GRID = PointGrid(ToyMachine().problem())
BASE = {
    LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 12, "ubatch": 2048, "batch": 4096,
    "cache_type": "f16", "load_mode": "none",
}  # fmt: skip
POINTS = [
    {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: hosted, **rest}
    for hosted in range(LAYERS + 1)
    for rest in SPACE.points()
]


def _kernel(one: Point, other: Point) -> float:
    rows = [np.array([GRID.row_of(point)]) for point in (one, other)]
    return float(Kernel(GRID).matrix(*rows)[0, 0])


def test_the_kernel_of_equal_points_is_1() -> None:
    """A point has the correlation 1 with itself."""
    assert _kernel(BASE, BASE) == 1.0


def test_minor_axes_keep_points_close() -> None:
    """Another batch is nearly a copy; another ubatch, KV type or load mode is not."""
    batch = _kernel(BASE, {**BASE, "batch": 2048})

    assert batch > 0.9
    for change in ({"ubatch": 1024}, {"cache_type": "q8_0"}, {"load_mode": "mmap"}):
        assert _kernel(BASE, {**BASE, **change}) < batch - 0.2


def test_a_cliff_may_lie_between_neighbours() -> None:
    """One host layer more or less does not share the part that belongs to a point alone."""
    near = _kernel(BASE, {**BASE, HOST_LAYERS_AXIS: 13})

    assert 0.7 < near < 0.8
    assert near > _kernel(BASE, {**BASE, HOST_LAYERS_AXIS: 16})


@given(st.lists(st.integers(0, len(POINTS) - 1), min_size=2, max_size=12, unique=True))
def test_kernel_matrices_are_covariances(indices: list[int]) -> None:
    """The kernel matrix of any points is symmetric and positive semidefinite."""
    rows = np.array([GRID.row_of(POINTS[index]) for index in indices])

    matrix = Kernel(GRID).matrix(rows, rows)

    assert np.allclose(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix).min() > -1e-9
