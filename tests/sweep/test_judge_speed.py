"""The verdict on speeds: what is a change, what is noise, and what nothing decides."""

from __future__ import annotations

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
from autofit.sweep.judge import judge
from autofit.sweep.thresholds import Thresholds

SPEEDS = ("pp_per_s", "tg_per_s", "ttft_s", "request_s")
RANK = {"slower": 0, "undecided": 1, "same": 1, "faster": 2}


def test_a_night_like_the_kept_ones_is_the_same():
    """Nothing is claimed of another night with the same noise."""
    verdict = judge(kept(), night(20))

    assert verdict.verdict == "same"
    assert {one.verdict for one in verdict.metrics} == {"same"}
    assert verdict.environment_changes == ()
    assert not verdict.regressions
    assert not verdict.improvements


@pytest.mark.parametrize(
    ("slowdown", "words"), [(1.25, "% slower"), (5.0, "much slower"), (0.2, "much faster")]
)
def test_a_change_by_a_factor_is_not_told_in_percent(slowdown, words):
    """Up to twice the time a share reads best; beyond it the factor beside it does."""
    verdict = judge(kept(), night(20, launches=launches(slowdown=slowdown, seed=20)))

    assert by_metric(verdict)["request_s"].words.partition(":")[0].endswith(words)


def test_a_slower_night_is_a_regression_in_every_figure():
    """Ten percent more seconds at 1% noise: rates and times alike, with numbers in words."""
    verdict = judge(kept(), night(20, launches=launches(slowdown=1.1, seed=20)))
    found = by_metric(verdict)

    assert verdict.verdict == "regression"
    for key in SPEEDS:
        one = found[key]
        assert one.verdict == "slower"
        assert one.ratio == pytest.approx(1 / 1.1, rel=0.01)
        assert one.low < one.ratio < one.high < 1
        assert one.p < 0.01
        assert "slower" in one.words
        assert len(one.nights) == 4
    assert found["outcome"].verdict == "same"
    assert verdict.reproduce


def test_no_figure_is_told_as_a_power_of_ten():
    """Prompts of a small model reach tens of thousands of tokens per second."""
    fast = {"slowdown": 0.02, "seed": 20}
    words = by_metric(judge(kept(), night(20, launches=launches(**fast))))["pp_per_s"].words

    assert re.search(r"\b\d\d,\d{3} ", words), words
    assert "e+" not in words


def test_a_faster_night_is_an_improvement():
    """Ten percent less seconds are told as such."""
    verdict = judge(kept(), night(20, launches=launches(slowdown=0.9, seed=20)))

    assert verdict.verdict == "improvement"
    assert {one.metric for one in verdict.improvements} == set(SPEEDS)


def test_the_trend_is_of_all_nights_in_their_order():
    """Nights of an earlier level are shown, too, and tonight is the last."""
    baseline = Baseline({"qwen": kept(3)})
    slow = [night(day, launches=launches(slowdown=1.2, seed=day)) for day in (4, 5)]

    verdict = judge(baseline.updated(slow).entry("qwen"), night(20))

    trend = by_metric(verdict)["request_s"].nights
    assert [round(value / 3.1, 1) for value in trend] == [1.0, 1.0, 1.0, 1.2, 1.2, 1.0]


def test_one_figure_alone_is_a_regression():
    """Generation 10% slower beside prompts as fast as before."""
    slow = tuple(replace(one, tg_per_s=one.tg_per_s / 1.1) for one in launches(seed=20))

    verdict = judge(kept(), night(20, launches=slow))

    assert [one.metric for one in verdict.regressions] == ["tg_per_s"]


def test_a_change_below_the_threshold_is_none_however_sure():
    """Two percent at no noise do not count where three do, and do where one does."""
    steady = kept(launches=launches(noise=0.0001))
    slower = night(20, launches=launches(slowdown=1.02, noise=0.0001))

    assert judge(steady, slower).verdict == "same"
    strict = Thresholds.of(dict.fromkeys(("pp", "tg", "ttft", "request_s"), 1))
    assert judge(steady, slower, replace(strict, night_sd=0.001)).verdict == "regression"


def test_noise_that_hides_a_change_is_undecided():
    """Three launches at 30% noise rule no loss out, and the words say so."""
    noisy = kept(1, launches=launches(3, noise=0.3))

    found = by_metric(judge(noisy, night(20, launches=launches(3, noise=0.3, seed=20))))

    assert found["request_s"].verdict == "undecided"
    assert "more launches" in found["request_s"].words


def test_launches_that_vary_more_than_before_are_pointed_out():
    """A machine that is disturbed tonight cries no regression, but is named."""
    verdict = judge(kept(), night(20, launches=launches(noise=0.2, slowdown=1.05, seed=3)))

    assert verdict.verdict != "regression"
    assert any("vary more" in note for note in verdict.notes)


def test_the_reference_of_tonight_decides_where_there_is_one():
    """A machine 10% slower for both is no regression of the runtime, and is told."""
    slow = launches(slowdown=1.1, noise=0.02, seed=20)

    verdict = judge(kept(), night(20, launches=slow, reference=slow))
    alone = judge(kept(), night(20, launches=slow))

    assert verdict.verdict == "same"
    assert by_metric(verdict)["request_s"].against == "reference"
    assert any("the machine changed" in note for note in verdict.notes)
    assert alone.verdict == "regression"


def test_a_runtime_slower_than_its_reference_is_a_regression():
    """Pairs find 5% under 20% noise that both share, and need no kept night."""
    rough = launches(8, noise=0.2, seed=5)
    slower = tuple(
        launch_values(one.request_s / 3.1 * factor)
        for one, factor in zip(rough, (1.05, 1.06, 1.04, 1.05) * 2, strict=True)
    )

    verdict = judge(None, night(20, launches=slower, reference=rough))

    assert verdict.verdict == "regression"
    assert by_metric(verdict)["tg_per_s"].kept == pytest.approx(40, rel=0.2)


def test_one_pair_of_launches_decides_nothing():
    """Too few launches to tell their noise do not show that nothing changed."""
    slow = (launch_values(1.5),)

    verdict = judge(kept(), night(20, launches=slow, reference=(launch_values(1.0),)))

    assert verdict.verdict == "undecided"
    assert by_metric(verdict)["request_s"].verdict == "undecided"
    assert "too few launches" in by_metric(verdict)["request_s"].words


def test_loading_is_judged_where_a_threshold_asks_for_it():
    """It hangs on what the host has cached, so it is left out otherwise."""
    before = kept(launches=tuple(replace(one, load_s=10.0) for one in launches()))
    now = night(20, launches=tuple(replace(one, load_s=20.0) for one in launches(seed=20)))

    assert "load_s" not in by_metric(judge(before, now))
    asked = judge(before, now, Thresholds.of({"load_s": 50}))
    assert [one.metric for one in asked.regressions] == ["load_s"]


def test_figures_that_are_missing_tonight_are_unknown():
    """A metric that was kept and not measured is told, not passed over."""
    found = by_metric(judge(kept(), night(20, launches=(LaunchValues(pp_per_s=800.0),) * 8)))

    assert found["tg_per_s"].verdict == "unknown"
    assert "not measured" in found["tg_per_s"].words
    assert found["pp_per_s"].verdict == "same"


def test_launches_that_failed_are_left_out():
    """A launch without figures beside seven with them changes nothing else."""
    some = (*launches(7, seed=20), LaunchValues())

    assert judge(kept(), night(20, launches=some)).verdict == "same"
    assert judge(kept(), night(20, launches=some, reference=some)).verdict == "same"


@given(
    st.floats(0.8, 1.25),
    st.floats(1.0, 1.2),
    st.integers(2, 10),
    st.sampled_from([0.001, 0.01, 0.05]),
    st.integers(0, 1000),
)
def test_a_slower_night_is_never_judged_better(slowdown, more, count, noise, seed):
    """Whatever the noise: more seconds in all launches move no figure towards faster."""
    before = kept(2, launches=launches(count, noise=noise, seed=7))
    same = launches(count, slowdown=slowdown, noise=noise, seed=seed)
    slower = launches(count, slowdown=slowdown * more, noise=noise, seed=seed)

    one = by_metric(judge(before, night(20, launches=same)))
    other = by_metric(judge(before, night(20, launches=slower)))

    for key in SPEEDS:
        assert RANK[other[key].verdict] <= RANK[one[key].verdict]
        assert other[key].ratio <= one[key].ratio * (1 + 1e-12)
