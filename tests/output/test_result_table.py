"""The tables of a result."""

from __future__ import annotations

import pytest
from output.tune_sample import RESULT

from autofit.output.text.result_table import boundary_row, cliff_row, spent_table


def test_open_boundary_of_a_probe_is_unknown():
    """A tune estimates the side that it did not launch; a probe leaves it unknown."""
    row = {"layout": "single:CUDA0", "cache_type": "f16", "fits": 1, "fails": None,
           "outcome": None, "proven": False, "source": "estimate"}  # fmt: skip

    tuned, probed = boundary_row(row), boundary_row({**row, "launches": [1]})
    assert tuned[2:] == ("unknown", "1 layer", "none", "", "no, estimated")
    assert probed[3:] == ("1 layer", "unknown", "", "no")


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"n_cpu_moe": 6, "prefetch_slots": 4}, "512, prefetch_slots 4"),
        ({"prefetch_weights": True, "moe_cache_mib": 0}, "512, prefetch_weights on"),
        ({"moe_cache_mib": 800}, "512, moe_cache_mib 800"),
        ({"prefetch_slots": 0}, "512"),
        (None, "512"),
    ],
)
def test_boundary_has_the_settings_that_need_memory_for_experts(params, shown):
    """With fewer slots, another number of layers may fit."""
    row = {"layout": "single:CUDA0", "cache_type": "f16", "ubatch": 512, "fits": 6, "fails": 5,
           "outcome": "out_of_memory", "proven": True, "params": params}  # fmt: skip

    assert boundary_row(row)[2] == shown


def test_loss_at_a_cliff_is_a_share_of_the_speed():
    """A cliff has the lost share of a speed, with its interval."""
    (cliff,) = RESULT["cliffs"]

    assert cliff_row(cliff)[:3] == (
        "n_cpu_moe",
        "20 to 19",
        "generation speed -16% (-20% to -12%)",
    )


def test_time_spent_adds_up():
    """Each phase and length of test has its share, then what no launch needed."""
    rows = spent_table(RESULT).rows

    assert [row[0] for row in rows] == [
        *("baseline", "boundary", "boundary", "search", "confirm"),
        *("memory estimates", "overhead"),
    ]
    assert rows[4][2:] == ("2", "16 min 30 s", "54%")
    assert sum(int(row[4].rstrip("%")) for row in rows) in range(98, 103)


def test_older_result_has_no_time_by_length_of_test():
    """Without `spent` there are no rows."""
    assert spent_table({}).rows == ()
