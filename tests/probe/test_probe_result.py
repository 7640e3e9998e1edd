"""What the result of a probe says in words."""

from __future__ import annotations

import pytest
from study.study_sample import header

from autofit.memory.boundary_walk import BoundaryWalk
from autofit.probe.probe_result import Line, budget_words
from autofit.study.study_folder import Study


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({}, "nothing was launched"),
        ({2: True}, "host expert layers: 6 fit, fewer were not launched"),
        ({1: False}, "host expert layers: 5 do not fit, more were not launched"),
        ({4: True, 1: False}, "host expert layers: 8 fit, 5 do not; the rest was not launched"),
    ],
)
def test_what_a_spent_budget_leaves_open_is_counted_as_the_table_does(tmp_path, known, words):
    """Four layers that are not on the device count in both."""
    line = Line("single:CUDA0", "f16", 512, {}, BoundaryWalk(8, 3))
    for host_layers, fits in known.items():
        line.walk.tell(host_layers, fits=fits)

    def told_of(_: Line, host_layers: int | None, *, fits: bool = True) -> int | None:
        del fits
        return None if host_layers is None else host_layers + 4

    with Study.create(tmp_path / "study", header()) as study:
        how, told = budget_words([line], study, told_of)

    assert "--resume" in how
    assert told == f"single:CUDA0, f16: {words}"
