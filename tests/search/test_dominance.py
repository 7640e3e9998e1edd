"""What a memory failure rules out, and what a launch that ran shows to fit."""

from __future__ import annotations

import numpy as np
import pytest
from search.toy_machine import SPACE, ToyMachine

from autofit.search.dominance import kv_bytes, needing_at_least, needing_at_most
from autofit.search.point_grid import Grid
from autofit.search.problem import Memory
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point

FAILED: Point = {
    LAYOUT_AXIS: "single:A",
    HOST_LAYERS_AXIS: 10,
    "ubatch": 1024,
    "batch": 4096,
    "cache_type": "q8_0",
    "load_mode": "none",
}
GRID = Grid(ToyMachine(layouts=("single:A", "single:B")).problem())


def _is_ruled_out(memory: Memory, **changes) -> bool:
    rows = np.array([GRID.row_of({**FAILED, **changes})])
    return bool(needing_at_least(GRID, rows, np.array(GRID.row_of(FAILED)), memory)[0])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {HOST_LAYERS_AXIS: 9},
        {HOST_LAYERS_AXIS: 0},
        {"ubatch": 2048},
        {"cache_type": "f16"},
        {"batch": 2048},
        {"load_mode": "mmap"},
        {HOST_LAYERS_AXIS: 3, "ubatch": 4096, "cache_type": "f16", "load_mode": "mmap"},
    ],
)
def test_what_takes_no_less_of_a_device_fails_too(changes) -> None:
    """More layers, ubatch or cache on a device that was full cannot fit."""
    assert _is_ruled_out("device", **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {HOST_LAYERS_AXIS: 11},
        {"ubatch": 512},
        {LAYOUT_AXIS: "single:B"},
        {HOST_LAYERS_AXIS: 9, "ubatch": 512},
    ],
)
def test_what_takes_less_or_lies_elsewhere_may_fit(changes) -> None:
    """A failure says nothing of what needs less of anything, or of another layout."""
    assert not _is_ruled_out("device", **changes)


def test_a_full_host_rules_out_more_layers_on_it() -> None:
    """Host memory pulls the other way, whatever the caches on the devices."""
    assert _is_ruled_out("host", **{HOST_LAYERS_AXIS: 11})
    assert _is_ruled_out("host", **{HOST_LAYERS_AXIS: 11, "cache_type": "f16", "ubatch": 512})
    assert not _is_ruled_out("host", **{HOST_LAYERS_AXIS: 9})
    assert not _is_ruled_out("host", load_mode="mmap")


def test_both_directions_agree() -> None:
    """A row needs at most what another does exactly where that one needs at least as much."""
    rows = np.array(
        [
            GRID.row_of({LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: hosted, **rest})
            for rest in SPACE.points()
            for hosted in (0, 10, 24)
        ]
    )

    for row in rows[::7]:
        at_most = needing_at_most(GRID, rows, row, "device")
        for other, is_less in zip(rows, at_most, strict=True):
            assert needing_at_least(GRID, row[None, :], other, "device")[0] == is_less


@pytest.mark.parametrize(("name", "size"), [("f16", 2.0), ("q8_0", 1.0625), ("q4_0", 0.5625)])
def test_bytes_of_cache_types(name: str, size: float) -> None:
    """Sizes are those of the blocks that llama.cpp stores."""
    assert kv_bytes(name) == size


def test_a_cache_type_of_a_fork_has_no_known_size() -> None:
    """What is not known is nan, and compares with nothing."""
    assert np.isnan(kv_bytes("turbo3c"))
