"""Candidates are ruled out by a failed launch that needs no more memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from memory.launched_card import LAYOUT, LaunchedCard
from search.toy_machine import SPACE, ToyMachine

from autofit.memory.demand import Memory
from autofit.memory.dominance import (
    find_ruling_failure,
    needing_at_least,
    needing_at_most,
    shows_full_host,
)
from autofit.search.point_grid import PointGrid
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.trial.outcome import OutOfMemory, Rejected

FAILED: Point = {
    LAYOUT_AXIS: "single:A",
    HOST_LAYERS_AXIS: 10,
    "ubatch": 1024,
    "batch": 4096,
    "cache_type": "q8_0",
    "load_mode": "none",
}
GRID = PointGrid(ToyMachine(layouts=("single:A", "single:B")).problem())


def _needs_at_least(memory: Memory, **changes) -> bool:
    """Return whether a point needs at least as much as the one that failed."""
    rows = np.array([GRID.row_of({**FAILED, **changes})])
    return bool(needing_at_least(GRID.demands[memory], rows, np.array(GRID.row_of(FAILED)))[0])


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
def test_point_with_no_smaller_demand_is_ruled_out(changes) -> None:
    """More layers, ubatch or cache on a device that was full cannot fit."""
    assert _needs_at_least("device", **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {HOST_LAYERS_AXIS: 11},
        {"ubatch": 512},
        {LAYOUT_AXIS: "single:B"},
        {HOST_LAYERS_AXIS: 9, "ubatch": 512},
    ],
)
def test_point_with_less_demand_or_another_layout_is_not_find_ruling_failure(changes) -> None:
    """One smaller demand is enough, and layouts are not compared."""
    assert not _needs_at_least("device", **changes)


def test_full_host_rules_out_more_layers_on_it() -> None:
    """More host layers need more of the host; caches and ubatches on devices do not."""
    assert _needs_at_least("host", **{HOST_LAYERS_AXIS: 11})
    assert _needs_at_least("host", **{HOST_LAYERS_AXIS: 11, "cache_type": "f16", "ubatch": 512})
    assert not _needs_at_least("host", **{HOST_LAYERS_AXIS: 9})
    assert not _needs_at_least("host", load_mode="mmap")


def test_both_directions_agree() -> None:
    """One point needs at most as much as another exactly if that one needs at least as much."""
    rows = np.array(
        [
            GRID.row_of({LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: host_layers, **rest})
            for rest in SPACE.points()
            for host_layers in (0, 10, 24)
        ]
    )

    for row in rows[::7]:
        at_most = needing_at_most(GRID.demands["device"], rows, row)
        for other, is_less in zip(rows, at_most, strict=True):
            assert needing_at_least(GRID.demands["device"], row[None, :], other)[0] == is_less


@pytest.fixture(scope="module")
def card(tmp_path_factory) -> LaunchedCard:
    """A card with a model of 24 layers."""
    return LaunchedCard.of(tmp_path_factory.mktemp("dominance"))


def test_device_failure_rules_out_candidates_that_need_as_much_of_it(card):
    """Fewer host layers, a wider KV type and a larger ubatch are ruled out; more layers are not.

    A layout of another name is the same where its layers are on the same devices.
    """
    failed = card.trial(13, 5000, outcome=OutOfMemory("prompt", "full", device="CUDA0"))
    memory = card.memory(failed)

    def is_ruled_out(host_layers, cache_type="q8_0", layout=LAYOUT, **params):
        candidate = card.candidate(host_layers, cache_type).with_params(**params)
        return find_ruling_failure(candidate, layout, memory) is not None

    assert is_ruled_out(12)
    assert is_ruled_out(13, "f16")
    assert is_ruled_out(13, ubatch=4096)
    assert not is_ruled_out(14)
    assert not is_ruled_out(14, "f16")
    assert not is_ruled_out(12, ubatch=512)
    assert is_ruled_out(12, layout="capacity")
    assert not is_ruled_out(12, layout="capacity", n_gpu_layers=20)


def test_host_failure_rules_out_more_host_layers(card):
    """The direction is the opposite of a device's, and the failed launch is named."""
    failed = card.trial(13, 5000, outcome=OutOfMemory("load", "full", where="host"))
    memory = card.memory(failed)

    fewer, more = (find_ruling_failure(card.candidate(n), LAYOUT, memory) for n in (12, 14))

    assert fewer is None
    assert more[0] is failed


def test_host_failure_counts_for_nothing_where_as_much_host_memory_was_used(card):
    """A kill that looks like it rules out nothing once more host layers have run."""
    failed = card.trial(13, 5000, outcome=OutOfMemory("prompt", "SIGKILL", where="host"))
    ran, wide = card.trial(20, 4000), card.candidate(14, "f16")

    for trials, is_believed in (([failed], True), ([failed, ran], False)):
        memory = card.memory(*trials)
        assert shows_full_host(failed, memory) == is_believed
        assert (find_ruling_failure(wide, LAYOUT, memory) is not None) == is_believed


@pytest.mark.parametrize(
    ("cache_type", "reason", "is_ruled_out"),
    [("q8_0", "combination", True), ("f16", "combination", False), ("q8_0", "not_applied", False)],
)
def test_rejection_rules_out_the_same_settings_in_any_layout(
    card, cache_type, reason, is_ruled_out
):
    """A rejected combination does not depend on the devices of layers."""
    rejected = card.trial(13, 5000)
    rejected = replace(rejected, outcome=Rejected("context", "no", reason))
    candidate = card.candidate(20, cache_type)

    assert (
        find_ruling_failure(candidate, "balanced", card.memory(rejected)) is not None
    ) == is_ruled_out
