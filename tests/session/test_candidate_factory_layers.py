"""Counts of host layers as users see them."""

from __future__ import annotations

import pytest

from autofit.session.candidate_factory import count_leading_layers, reported_host_layers
from autofit.trial.candidate import Candidate


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
    assert count_leading_layers(Candidate(params), 13, host_layers) == expected


def test_on_several_devices_host_layers_are_counted_as_they_are():
    """A count without a candidate stays as it is, too."""
    candidate = Candidate({"n_gpu_layers": 9, "n_cpu_moe": 6})

    assert reported_host_layers("single:CUDA0", 2, lambda _: candidate, 13) == 6
    assert reported_host_layers("balanced", 2, lambda _: candidate, 13) == 2
    assert reported_host_layers("single:CUDA0", 2, lambda _: None, 13) == 2
    assert reported_host_layers("single:CUDA0", None, lambda _: candidate, 13) is None


@pytest.mark.parametrize(
    ("host_layers", "fits", "expected"),
    [
        (0, True, 0),
        (1, True, 4),
        (0, False, 3),  # three layers without experts lead: 1 to 3 are the same as 0
        (1, False, 4),
        (2, False, 6),  # so is the one between
        (3, True, 7),
        (3, False, 7),  # no more can be sent away
    ],
)
def test_a_failing_count_is_the_largest_equivalent(host_layers, fits, expected):
    """Both sides of a boundary are neighbours, whichever layers have no experts."""
    sent = {0: {}, 1: {"n_cpu_moe": 4}, 2: {"n_cpu_moe": 5}, 3: {"n_cpu_moe": 7}}

    def candidate_of(count: int) -> Candidate | None:
        return Candidate({"n_gpu_layers": 9, **sent[count]}) if count in sent else None

    assert (
        reported_host_layers("single:CUDA0", host_layers, candidate_of, 9, fits=fits) == expected
    )


def test_a_candidate_with_another_cut_is_no_neighbour():
    """Its count of layers has another meaning."""
    cut = {1: Candidate({"n_gpu_layers": 9, "n_cpu_moe": 3}), 2: Candidate({"n_gpu_layers": 4})}

    assert reported_host_layers("single:CUDA0", 1, cut.get, 9, fits=False) == 3
