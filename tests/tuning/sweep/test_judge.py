"""The verdict on a night: each kind of regression, improvements, and what is no change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuning.night_sample import WINNER, answer, failed, kept, launch_values, launches, night

from autofit.tuning.sweep.baseline import Baseline
from autofit.tuning.sweep.document import sweep_document
from autofit.tuning.sweep.judge import judge
from autofit.tuning.sweep.kept import Kept
from autofit.tuning.sweep.record import BoundaryRow, Failure, LaunchValues
from autofit.tuning.sweep.surroundings import Surroundings
from autofit.tuning.sweep.threshold import Thresholds
from autofit.tuning.sweep.verdict import REGRESSIONS

SPEEDS = ("pp_per_s", "tg_per_s", "ttft_s", "request_s")
RANK = {"slower": 0, "undecided": 1, "same": 1, "faster": 2}


def by_metric(verdict):
    """The verdicts on an entry's metrics by name."""
    return {one.metric: one for one in verdict.metrics}


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


def test_a_boundary_gained_needs_a_launch_of_the_kept_night():
    """Where the kept night only guessed that less would fail, fitting it now proves nothing."""
    guess = BoundaryRow("balanced", "f16", 17, 16, None, proven=False)
    row = BoundaryRow("balanced", "f16", 16, 15, "out_of_memory", proven=True)

    verdict = judge(kept(boundary=(guess,)), night(20, boundary=(row,)))

    assert by_metric(verdict)["boundary balanced f16"].verdict == "undecided"


@pytest.mark.parametrize("status", ["failed", "timed_out"])
def test_a_failure_that_was_none_before_is_new(status):
    """A crash and a hang are named with the evidence, kept nights or none."""
    for before in (kept(), None):
        verdict = judge(before, failed("crashed", status))

        assert verdict.verdict == "regression"
        assert [one.verdict for one in verdict.metrics] == ["new_failure"]
        assert "the log says crashed" in verdict.metrics[0].words


def test_settings_that_are_no_longer_taken_are_named():
    """A flag that is gone is another kind than a crash."""
    gone = Failure("rejected", "error: invalid argument: --n-cpu-moe", "load", "unknown_flag")

    verdict = judge(kept(), failed(status="rejected", failure=gone))

    assert [one.verdict for one in verdict.metrics] == ["preset_rejected"]
    assert "--n-cpu-moe" in verdict.metrics[0].words


def test_a_kept_failure_is_no_regression_and_its_end_an_improvement():
    """Who keeps a failure is told when it is over, and when it becomes another one."""
    before = Kept(failed("out_of_memory"), kept().nights)

    again = judge(before, failed("out_of_memory"))
    other = judge(before, failed("crashed"))
    over = judge(before, night(20))

    assert (again.verdict, other.verdict, over.verdict) == ("failing", "failing", "improvement")
    assert "kept was" in other.metrics[0].words
    assert by_metric(over)["outcome"].verdict == "recovered"
    assert by_metric(over)["request_s"].verdict == "same"


@pytest.mark.parametrize("status", ["missing_hardware", "not_run"])
def test_what_was_never_launched_is_skipped_with_the_reason(status):
    """Missing hardware is told, beside when the entry was last measured."""
    why = Failure("usage", "no device CUDA3", "plan")

    verdict = judge(kept(), failed(status=status, failure=why))

    assert verdict.verdict == "skipped"
    assert verdict.metrics == ()
    assert "no device CUDA3" in verdict.notes[0]
    assert "2026-11-04" in verdict.notes[1]


def test_an_entry_of_which_nothing_is_kept_is_new():
    """Its figures are shown without a verdict."""
    verdict = judge(None, night(20))

    assert verdict.verdict == "new"
    assert by_metric(verdict)["request_s"].now == pytest.approx(3.1, rel=0.02)
    assert by_metric(verdict)["request_s"].verdict == "unknown"


def test_other_answers_are_a_regression():
    """Another token where the model was sure is no rounding."""
    wrong = answer((100, 101, *range(500, 522)), "so it does not")

    verdict = judge(kept(), night(20, answers=(wrong, answer(range(300, 324), "and so on"))))

    assert by_metric(verdict)["answers"].verdict == "output_changed"
    assert "so it does not" in by_metric(verdict)["answers"].words


def test_answers_are_held_against_the_reference_of_tonight_first():
    """What the old runtime answers tonight as well, it answers rightly."""
    both = (answer(range(700, 724), "new words"),)

    verdict = judge(kept(), night(20, answers=both, reference_answers=both))

    assert by_metric(verdict)["answers"].verdict == "same"
    assert by_metric(verdict)["answers"].against == "reference"


def test_answers_of_another_model_or_a_wider_cache_are_not_compared():
    """A file that was replaced changes answers, and the environment says so."""
    other = replace(night().environment, model_digest="cafe")
    wide = kept(winner=replace(WINNER, params={"cache_type_k": "q8_0", "cache_type_v": "q8_0"}))

    by_model = judge(kept(), night(20, environment=other))
    by_cache = judge(wide, night(20))

    assert by_metric(by_model)["answers"].verdict == "unknown"
    assert any("model file" in change for change in by_model.environment_changes)
    assert by_metric(by_cache)["answers"].verdict == "unknown"


def test_answers_of_a_narrower_cache_are_scored():
    """Good enough is the same, as for the winner of a tune; poor is a regression."""
    narrow = replace(WINNER, params={"cache_type_k": "q4_0", "cache_type_v": "q4_0"})
    lost = (answer(range(900, 924), "lost"),) * 2

    good = judge(kept(), night(20, winner=narrow))
    poor = judge(kept(), night(20, winner=narrow, answers=lost))

    assert by_metric(good)["answers"].verdict == "same"
    assert by_metric(poor)["answers"].verdict == "output_changed"


def test_an_entry_that_was_not_asked_has_no_case_for_answers():
    """Answers that were switched off are no unknown, and none that were kept are one."""
    assert "answers" not in by_metric(judge(kept(), night(20, answers=())))
    assert by_metric(judge(kept(answers=()), night(20)))["answers"].verdict == "unknown"


def test_what_changed_around_it_stands_beside_the_verdict():
    """Driver, clocks and busy neighbours are named; a wandering clock is not."""
    around = Surroundings(
        driver="590.2",
        build="b11434",
        model_digest="beef",
        clocks_mhz={"CUDA0": 1200.0, "cpu": 3050.0},
        others_cores=3.0,
        remarks=("the hypervisor gives 20% of the CPU time to others",),
    )

    verdict = judge(kept(), night(20, environment=around))

    assert verdict.verdict == "same"
    assert verdict.environment_changes == (
        "driver: 580.1, now 590.2",
        "clock of CUDA0: 1900 MHz, now 1200 MHz",
        "other processes: 0.1 cores busy, now 3.0",
        "the hypervisor gives 20% of the CPU time to others",
    )


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


def test_the_document_lists_names():
    """An entry with a regression beside an improvement is in both lists."""
    mixed = judge(
        kept(),
        night(20, launches=launches(slowdown=0.9, seed=20), peak_mib={"CUDA0": 12_000.0}),
    )
    skipped = judge(None, failed(status="missing_hardware", name="other"))

    document = sweep_document([mixed, skipped])

    assert document["regressions"] == ["qwen"]
    assert document["improvements"] == ["qwen"]
    assert document["skipped"] == ["other"]
    assert document["entries"][0]["kinds"] == ["more_memory"]
    assert [entry["verdict"] for entry in document["entries"]] == ["regression", "skipped"]


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


@given(st.floats(0, 30_000), st.floats(0, 5_000))
def test_more_memory_is_never_judged_better(mib, more):
    """The same for memory."""
    rank = {"more_memory": 0, "same": 1, "less_memory": 2}
    found = [
        by_metric(judge(kept(1), night(20, peak_mib={"CUDA0": value})))["peak_mib CUDA0"].verdict
        for value in (mib, mib + more)
    ]

    assert rank[found[1]] <= rank[found[0]]


def test_every_kind_of_regression_is_reached():
    """Each kind can happen; none is only a name."""
    made = {
        one.verdict
        for verdict in (
            judge(kept(), night(20, launches=launches(slowdown=1.2, seed=20))),
            judge(kept(), night(20, peak_mib={"CUDA0": 12_000.0})),
            judge(
                kept(),
                night(20, boundary=(BoundaryRow("balanced", "f16", 18, 17, "crashed", True),)),
            ),
            judge(kept(), failed()),
            judge(kept(), failed(status="rejected")),
            judge(kept(), night(20, answers=(answer(range(900, 924), "lost"),) * 2)),
        )
        for one in verdict.regressions
    }

    assert made == set(REGRESSIONS)


def test_an_entry_that_asks_for_something_else_begins_anew():
    """Other requests take other times: nothing is compared, and what changed is told."""
    other = {"environment": Surroundings(task="context 8192"), "launches": launches(slowdown=1.5)}
    verdict = judge(kept(environment=Surroundings(task="context 4096")), night(20, **other))

    assert verdict.verdict == "new"
    assert verdict.environment_changes == ("task: context 4096, now context 8192",)
    assert "begins anew" in verdict.notes[0]
