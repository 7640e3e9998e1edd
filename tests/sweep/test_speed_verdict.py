"""Verdicts on speeds: changes, noise, and what is undecided."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep.night_sample import (
    by_metric,
    kept,
    launch_values,
    launches,
    night,
)

from autofit.sweep.baseline_file import Baseline
from autofit.sweep.entry_record import LaunchValues
from autofit.sweep.judge import judge_entry
from autofit.sweep.verdict import Thresholds

SPEEDS = ("pp_per_s", "tg_per_s", "ttft_s", "request_s")
RANK = {"slower": 0, "undecided": 1, "same": 1, "faster": 2}


def test_night_like_the_earlier_ones_is_the_same():
    """Another night with the same noise has no change."""
    verdict = judge_entry(kept(), night(20))

    assert verdict.verdict == "same"
    assert {one.verdict for one in verdict.metrics} == {"same"}
    assert verdict.environment_changes == ()
    assert not verdict.regressions
    assert not verdict.improvements


def test_slower_night_is_a_regression_in_every_speed():
    """Ten percent more seconds at 1% noise show in rates and in times."""
    verdict = judge_entry(kept(), night(20, launches=launches(slowdown=1.1, seed=20)))
    found = by_metric(verdict)

    assert verdict.verdict == "regression"
    for key in SPEEDS:
        one = found[key]
        assert one.verdict == "slower"
        assert one.ratio == pytest.approx(1 / 1.1, rel=0.01)
        assert one.low < one.ratio < one.high < 1
        assert one.p < 0.01
        assert len(one.nights) == 4
    assert found["outcome"].verdict == "same"
    assert verdict.reproduce


@pytest.mark.parametrize("odd", [5e-324, 1e-300, 1e308, math.inf, math.nan, 0.0, -1.0])
@pytest.mark.parametrize("is_odd_before", [True, False])
def test_speeds_that_no_launch_can_have_are_not_compared(odd, is_odd_before):
    """A damaged baseline or night has no value of that metric, and the others have verdicts."""
    odd_launches = tuple(replace(one, tg_per_s=odd) for one in launches())
    before = Baseline().updated([night(launches=odd_launches) if is_odd_before else night()])
    now = night(20) if is_odd_before else night(20, launches=odd_launches)
    found = by_metric(judge_entry(before.entries[now.name], now))

    assert found["tg_per_s"].ratio is None
    assert found["pp_per_s"].ratio is not None


@pytest.mark.parametrize(
    ("slowdown", "metric", "message"),
    [
        (1.25, "request_s", r"0\.80x as fast \(95% interval .*\): 3\.\d+ s, baseline 3\.\d+ s"),
        (
            0.02,
            "pp_per_s",
            r"(49|50)(\.\d)?x as fast \(.*\): \d\d,\d{3} tokens/s, baseline .*",
        ),
        (
            0.2,
            "tg_per_s",
            r"(4\.9|5\.0)\dx as fast \(.*\): \d+\.\d tokens/s, baseline 40 .*",
        ),
    ],
)
def test_message_has_speed_interval_and_values(slowdown, metric, message):
    """A number never has a power of ten, though prompts reach tens of thousands of tokens/s."""
    verdict = judge_entry(kept(), night(20, launches=launches(slowdown=slowdown, seed=20)))

    assert re.fullmatch(message, by_metric(verdict)[metric].message)


def test_faster_night_is_an_improvement():
    """Ten percent fewer seconds are an improvement in every speed."""
    verdict = judge_entry(kept(), night(20, launches=launches(slowdown=0.9, seed=20)))

    assert verdict.verdict == "improvement"
    assert {one.metric for one in verdict.improvements} == set(SPEEDS)


def test_trend_has_all_nights_in_order():
    """It includes the nights of earlier levels, and tonight is the last."""
    baseline = Baseline({"qwen": kept(3)})
    slow = [night(day, launches=launches(slowdown=1.2, seed=day)) for day in (4, 5)]

    verdict = judge_entry(baseline.updated(slow).entries["qwen"], night(20))

    trend = by_metric(verdict)["request_s"].nights
    assert [round(value / 3.1, 1) for value in trend] == [1.0, 1.0, 1.0, 1.2, 1.2, 1.0]


def test_one_slower_metric_is_a_regression():
    """Generation can be slower while prompts are as fast as before."""
    slow = tuple(replace(one, tg_per_s=one.tg_per_s / 1.1) for one in launches(seed=20))

    verdict = judge_entry(kept(), night(20, launches=slow))

    assert [one.metric for one in verdict.regressions] == ["tg_per_s"]


def test_change_below_the_threshold_does_not_count():
    """A certain change of 6% counts with thresholds of 3%, and not with those of 8%."""
    steady = kept(launches=launches(noise=0.0001))
    slower = night(20, launches=launches(slowdown=1.06, noise=0.0001))
    lax = Thresholds(**dict.fromkeys(("pp", "tg", "ttft", "request_s"), 8))

    assert judge_entry(steady, slower).verdict == "regression"
    assert judge_entry(steady, slower, lax).verdict == "same"


def test_noise_that_hides_a_change_is_undecided():
    """Three launches at 30% noise do not rule out a loss."""
    noisy = kept(1, launches=launches(3, noise=0.3))

    found = by_metric(judge_entry(noisy, night(20, launches=launches(3, noise=0.3, seed=20))))

    assert found["request_s"].verdict == "undecided"


def test_launches_that_vary_more_than_before_have_a_note():
    """A disturbed machine is no regression, but has a note."""
    verdict = judge_entry(kept(), night(20, launches=launches(noise=0.2, slowdown=1.05, seed=3)))

    assert verdict.verdict != "regression"
    assert any("vary more" in note for note in verdict.notes)


def test_reference_of_tonight_decides_if_there_is_one():
    """A machine 10% slower for both is no regression of the runtime, and has a note."""
    slow = launches(slowdown=1.1, noise=0.02, seed=20)

    verdict = judge_entry(kept(), night(20, launches=slow, reference=slow))
    alone = judge_entry(kept(), night(20, launches=slow))

    assert verdict.verdict == "same"
    assert by_metric(verdict)["request_s"].against == "reference"
    assert any("the machine changed" in note for note in verdict.notes)
    assert alone.verdict == "regression"


def test_runtime_slower_than_its_reference_is_a_regression():
    """Pairs show 5% under 20% noise that both share, and need no baseline."""
    rough = launches(8, noise=0.2, seed=5)
    slower = tuple(
        launch_values(one.request_s / 3.1 * factor)
        for one, factor in zip(rough, (1.05, 1.06, 1.04, 1.05) * 2, strict=True)
    )

    verdict = judge_entry(None, night(20, launches=slower, reference=rough))

    assert verdict.verdict == "regression"
    assert by_metric(verdict)["tg_per_s"].kept == pytest.approx(40, rel=0.2)


def test_one_pair_of_launches_decides_nothing():
    """Too few launches for an interval do not show that nothing changed."""
    slow = (launch_values(1.5),)

    verdict = judge_entry(kept(), night(20, launches=slow, reference=(launch_values(1.0),)))

    assert verdict.verdict == "undecided"
    assert by_metric(verdict)["request_s"].verdict == "undecided"


def test_loading_is_judged_only_with_a_threshold():
    """It depends on what the host has cached, so it is left out by default."""
    before = kept(launches=tuple(replace(one, load_s=10.0) for one in launches()))
    now = night(20, launches=tuple(replace(one, load_s=20.0) for one in launches(seed=20)))

    assert "load_s" not in by_metric(judge_entry(before, now))
    asked = judge_entry(before, now, Thresholds(load_s=50))
    assert [one.metric for one in asked.regressions] == ["load_s"]


def test_metric_that_is_missing_tonight_is_unknown():
    """A metric of the baseline that was not measured tonight has a verdict."""
    found = by_metric(judge_entry(kept(), night(20, launches=(LaunchValues(pp_per_s=800.0),) * 8)))

    assert found["tg_per_s"].verdict == "unknown"
    assert found["pp_per_s"].verdict == "same"


def test_failed_launches_are_left_out():
    """One launch without values among seven with values changes no verdict."""
    some = (*launches(7, seed=20), LaunchValues())

    assert judge_entry(kept(), night(20, launches=some)).verdict == "same"
    assert judge_entry(kept(), night(20, launches=some, reference=some)).verdict == "same"


@given(
    st.floats(0.8, 1.25),
    st.floats(1.0, 1.2),
    st.integers(2, 10),
    st.sampled_from([0.001, 0.01, 0.05]),
    st.integers(0, 1000),
)
def test_slower_night_is_never_judged_better(slowdown, more, count, noise, seed):
    """Whatever the noise, more seconds in all launches move no verdict towards faster."""
    before = kept(2, launches=launches(count, noise=noise, seed=7))
    same = launches(count, slowdown=slowdown, noise=noise, seed=seed)
    slower = launches(count, slowdown=slowdown * more, noise=noise, seed=seed)

    one = by_metric(judge_entry(before, night(20, launches=same)))
    other = by_metric(judge_entry(before, night(20, launches=slower)))

    for key in SPEEDS:
        assert RANK[other[key].verdict] <= RANK[one[key].verdict]
        assert other[key].ratio <= one[key].ratio * (1 + 1e-12)
