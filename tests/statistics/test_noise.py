"""Unsteady candidates and cliffs."""

from __future__ import annotations

import json

import pytest

from autofit.statistics.noise import Cliff, find_cliffs, find_unsteady


def test_the_unsteady_candidate_is_found():
    """A candidate whose launches differ many times as much as those of others is found."""
    launches = {
        "a": [40.1, 40.6, 39.8],
        "b": [42.0, 41.5, 42.2],
        "edge": [44.0, 12.0, 38.0],
        "c": [39.0, 39.4, 38.8],
    }

    found = find_unsteady(launches)

    assert [one.key for one in found] == ["edge"]
    assert found[0].times > 10
    assert found[0].n == 3


def test_two_unsteady_candidates_do_not_hide_each_other():
    """The usual variance is the median of the others, not their largest."""
    launches = {name: [40.0, 40.5, 39.7] for name in "abcd"}
    launches |= {"x": [40.0, 10.0, 30.0], "y": [41.0, 15.0, 38.0]}

    assert {"x", "y"} == {one.key for one in find_unsteady(launches)}


@pytest.mark.parametrize(
    "launches",
    [
        {},
        {"alone": [40.0, 10.0, 30.0]},
        {"a": [40.0, 30.0, 50.0], "b": [41.0, 28.0, 47.0], "c": [35.0, 50.0, 42.0]},
        {"a": [40.0, 40.01, 40.0], "b": [40.0, 40.3, 39.9]},
        {"a": [40.0], "b": [20.0]},
    ],
)
def test_ordinary_launches_are_not_unsteady(launches):
    """Equal noise, no other candidates, single launches and small differences are ignored."""
    assert find_unsteady(launches) == []


def test_the_published_cliff_is_found():
    """A step from 20 to 19 host expert layers that loses 16% of generation is a cliff."""
    launches = {
        22: [40.9, 41.1, 41.0],
        21: [41.5, 41.7, 41.6],
        20: [42.18, 42.3, 42.1],
        19: [35.4, 35.6, 35.3],
    }

    (cliff,) = find_cliffs("n_cpu_moe", launches, "tg", toward="down")

    assert (cliff.from_value, cliff.to_value) == (20, 19)
    assert cliff.ratio == pytest.approx(0.84, abs=0.01)
    assert cliff.low < cliff.ratio < cliff.high < 0.87
    assert str(cliff).startswith("n_cpu_moe 19 loses 16% of tg against 20 (")


def test_more_seconds_are_a_loss():
    """A metric in seconds has a cliff where it increases."""
    launches = {20: [2.0, 2.01], 19: [3.0, 3.02]}

    (cliff,) = find_cliffs("n_cpu_moe", launches, "request_s", toward="down")

    assert cliff.ratio == pytest.approx(2 / 3, abs=0.01)


def test_single_launches_count_with_known_noise():
    """Values launched once have an interval if the noise is given."""
    launches = {12: [50.0], 8: [10.5]}

    (cliff,) = find_cliffs("n_cpu_moe", launches, "tg", toward="down", noise=0.03)

    assert cliff.low < 0.21 < cliff.high < 0.25


def test_a_loss_within_the_noise_is_no_cliff():
    """A loss that is a cliff at 1% noise is none at 10%."""
    launches = {20: [42.0], 19: [36.0]}

    assert find_cliffs("n_cpu_moe", launches, "tg", toward="down", noise=0.01)
    assert not find_cliffs("n_cpu_moe", launches, "tg", toward="down", noise=0.1)


def test_without_any_noise_known_only_a_large_loss_counts():
    """Without known noise a loss of 79% is a cliff without an interval, and one of 7% is none."""
    (cliff,) = find_cliffs("n_cpu_moe", {12: [50.0], 8: [10.5]}, "tg", toward="down")

    assert (cliff.low, cliff.high) == (None, None)
    assert str(cliff) == "n_cpu_moe 8 loses 79% of tg against 12"
    assert not find_cliffs("n_cpu_moe", {20: [42.0], 19: [39.0]}, "tg", toward="down")


@pytest.mark.parametrize(("loss", "is_cliff"), [(0.06, False), (0.09, False), (0.12, True)])
def test_a_step_of_a_few_percent_is_no_cliff(loss, is_cliff):
    """A step that surely loses less than a tenth is the usual price of a layer."""
    launches = {20: [42.0, 42.1], 19: [42.0 * (1 - loss), 42.1 * (1 - loss)]}

    found = find_cliffs("n_cpu_moe", launches, "tg", toward="down", noise=0.001)

    assert bool(found) == is_cliff


def test_a_steady_slope_is_no_cliff():
    """Steps that all lose the same share, as on backends with a slow link, are no cliffs."""
    launches = {n: [10.0 * 1.08 ** (n - 10)] for n in range(10, 20)}

    assert find_cliffs("n_cpu_moe", launches, "tg", toward="down", noise=0.005) == []


def test_a_gain_is_no_cliff():
    """A step that gains speed is no cliff."""
    launches = {20: [30.0, 30.1], 19: [40.0, 40.1]}

    assert find_cliffs("n_cpu_moe", launches, "tg", toward="down") == []


def test_a_cliff_toward_larger_values():
    """A parameter that needs more memory as it increases is read in that direction."""
    launches = {512: [800.0], 1024: [1200.0], 2048: [1711.0], 4096: [94.0]}

    (cliff,) = find_cliffs("ubatch", launches, "pp", toward="up", noise=0.02)

    assert (cliff.from_value, cliff.to_value) == (2048, 4096)


def test_json_keys_of_a_cliff():
    """The JSON keys of a cliff are those users read."""
    cliff = Cliff("n_cpu_moe", 20, 19, "tg", 0.84, 0.83, 0.85, "balanced", "q8_0")

    assert json.loads(json.dumps(cliff.to_dict())) == {
        "param": "n_cpu_moe",
        "from": 20,
        "to": 19,
        "metric": "tg",
        "ratio": 0.84,
        "low": 0.83,
        "high": 0.85,
        "layout": "balanced",
        "cache_type": "q8_0",
    }
