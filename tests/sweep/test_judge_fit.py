"""The verdict on memory and fit boundaries."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep.night_sample import (
    WINNER,
    by_metric,
    kept,
    night,
)

from autofit.sweep.entry_record import BoundaryRow
from autofit.sweep.judge import judge


def test_more_memory_is_a_regression_beyond_the_threshold():
    """400 MiB more are, 50 MiB are not, and 400 MiB less are an improvement."""
    for mib, expected in ((11_400, "more_memory"), (11_050, "same"), (10_600, "less_memory")):
        peak = {"CUDA0": float(mib), "host": 2_000.0}
        verdict = judge(kept(), night(20, peak_mib=peak))
        assert by_metric(verdict)["peak_mib CUDA0"].verdict == expected


def test_memory_of_the_host_has_a_wider_threshold():
    """Allocators move it by hundreds of MiB, mapped files by a share of the model."""
    small = kept(peak_mib={"host": 2_000.0})
    large = kept(peak_mib={"host": 40_000.0})

    for before, mib, expected in (
        (small, 2_400.0, "same"),
        (small, 2_600.0, "more_memory"),
        (large, 41_500.0, "same"),
        (large, 43_000.0, "more_memory"),
    ):
        verdict = judge(before, night(20, peak_mib={"host": mib}))
        assert by_metric(verdict)["peak_mib host"].verdict == expected


def test_memory_of_other_settings_is_not_compared():
    """A tune that found another winner needs other memory, which is said."""
    other = replace(WINNER, digest="other")
    verdict = judge(kept(), night(20, winner=other, peak_mib={"CUDA0": 12_000.0}))

    assert by_metric(verdict)["peak_mib CUDA0"].verdict == "unknown"
    assert any("other settings" in note for note in verdict.notes)


def test_a_counter_that_is_missing_is_unknown():
    """Memory that nobody counted is neither zero nor less."""
    verdict = judge(kept(), night(20, peak_mib={"CUDA0": None, "host": None}))

    assert by_metric(verdict)["peak_mib CUDA0"].verdict == "unknown"
    assert verdict.verdict == "same"


@pytest.mark.parametrize(
    ("fits", "fails", "outcome", "expected"),
    [
        (17, 16, "out_of_memory", "same"),
        (18, 17, "out_of_memory", "boundary_moved"),
        (18, 17, None, "undecided"),
        (19, None, None, "undecided"),
        (16, 15, "out_of_memory", "boundary_gained"),
        (None, 40, "out_of_memory", "boundary_moved"),
        (None, None, None, "undecided"),
    ],
)
def test_a_boundary_moves_where_a_launch_shows_it(fits, fails, outcome, expected):
    """One layer less is a regression once the kept value was seen to fail."""
    row = BoundaryRow("balanced", "f16", fits, fails, outcome, proven=False)

    verdict = judge(kept(), night(20, boundary=(row,)))

    assert by_metric(verdict)["boundary balanced f16"].verdict == expected


def test_a_boundary_of_another_layout_is_no_move():
    """Rows are compared with the kept row of their own layout and KV type."""
    row = BoundaryRow("capacity", "f16", 20, 19, "out_of_memory", proven=True)

    verdict = judge(kept(), night(20, boundary=(row,)))

    assert by_metric(verdict)["boundary capacity f16"].verdict == "unknown"


def test_a_boundary_with_another_ubatch_is_no_move():
    """A winner with larger compute buffers leaves fewer layers room, on the same machine."""
    row = BoundaryRow("balanced", "f16", 17, 16, "out_of_memory", proven=True, ubatch=512)
    larger = replace(row, fits=20, fails=19, ubatch=2048)

    verdict = judge(kept(boundary=(row,)), night(20, boundary=(larger,)))

    told = by_metric(verdict)["boundary balanced f16"]
    assert told.verdict == "unknown"
    assert told.words.endswith("not compared, with ubatch 2048 and ubatch 512")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {"prefetch_slots": 4}, "with ubatch 512 prefetch_slots 4 and ubatch 512"),
        ({"moe_cache_mib": 800}, {}, "with ubatch 512 and ubatch 512 moe_cache_mib 800"),
        (None, {"prefetch_slots": 4}, ""),
        ({"prefetch_slots": 4}, {"prefetch_slots": 4}, ""),
    ],
)
def test_a_boundary_with_other_room_for_experts_is_no_move(before, after, words):
    """Slots and caches take what layers would have; what no record tells is no difference."""
    row = BoundaryRow(
        "balanced", "f16", 17, 16, "out_of_memory", proven=True, ubatch=512, experts=before
    )
    tonight = replace(row, fits=20, fails=19, experts=after)

    verdict = judge(kept(boundary=(row,)), night(20, boundary=(tonight,)))

    told = by_metric(verdict)["boundary balanced f16"]
    assert told.verdict == ("unknown" if words else "boundary_moved")
    assert told.words.endswith(f"not compared, {words}") == bool(words)


def test_a_boundary_gained_needs_a_launch_of_the_kept_night():
    """Where the kept night only guessed that less would fail, fitting it now proves nothing."""
    guess = BoundaryRow("balanced", "f16", 17, 16, None, proven=False)
    row = BoundaryRow("balanced", "f16", 16, 15, "out_of_memory", proven=True)

    verdict = judge(kept(boundary=(guess,)), night(20, boundary=(row,)))

    assert by_metric(verdict)["boundary balanced f16"].verdict == "undecided"


@given(st.floats(0, 30_000), st.floats(0, 5_000))
def test_more_memory_is_never_judged_better(mib, more):
    """The same for memory."""
    rank = {"more_memory": 0, "same": 1, "less_memory": 2}
    found = [
        by_metric(judge(kept(1), night(20, peak_mib={"CUDA0": value})))["peak_mib CUDA0"].verdict
        for value in (mib, mib + more)
    ]

    assert rank[found[1]] <= rank[found[0]]
