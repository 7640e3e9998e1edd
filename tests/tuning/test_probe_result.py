"""How the result of a probe counts layers."""

from __future__ import annotations

import pytest
from results.study_sample import header

from autofit.results.study import Study
from autofit.trial.candidate import Candidate
from autofit.tuning.boundary_walk import BoundaryWalk
from autofit.tuning.probe_result import Line, budget_words, first_layers


@pytest.mark.parametrize(
    ("params", "host_layers", "expected"),
    [
        ({"n_gpu_layers": 13, "n_cpu_moe": 5}, 5, 5),
        ({"n_gpu_layers": 13}, 0, 0),
        ({"n_gpu_layers": 13, "n_cpu_moe": 8}, 5, 8),  # three layers without experts lead
        ({"n_gpu_layers": 9, "n_cpu_moe": 6}, 2, 6),
        ({"n_gpu_layers": 9, "n_cpu_moe": 5}, 1, 5),
        ({"n_gpu_layers": 9}, 0, 4),
        ({"n_gpu_layers": 9, "n_cpu_ffn": 6}, 2, 6),
        ({"n_gpu_layers": 9, "override_tensor": "blk.4.ffn_up_exps=CPU"}, 1, 5),
        ({"n_gpu_layers": 99}, 0, 0),
    ],
)
def test_layers_are_counted_without_a_gap(params, host_layers, expected):
    """One layer less on the host is one less in the count, also the last on the device."""
    assert first_layers(Candidate(params), 13, host_layers) == expected


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
    line = Line("single:CUDA0", "f16", {}, BoundaryWalk(8, 3))
    for host_layers, fits in known.items():
        line.walk.tell(host_layers, fits=fits)

    def told_of(_: Line, host_layers: int | None) -> int | None:
        return None if host_layers is None else host_layers + 4

    with Study.create(tmp_path / "study", header()) as study:
        how, told = budget_words([line], study, told_of)

    assert "--resume" in how
    assert told == f"single:CUDA0, f16: {words}"
