"""The verdict on an entry: failures, memory, fit boundaries and answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep.night_sample import WINNER, answer, by_metric, failed, kept, launches, night

from autofit.sweep.baseline_entry import BaselineEntry
from autofit.sweep.entry_record import BoundaryRow, EntryFailure, EnvironmentSnapshot
from autofit.sweep.judge import judge_entry
from autofit.sweep.verdict import REGRESSIONS, sweep_document


@pytest.mark.parametrize("status", ["failed", "timed_out"])
def test_failure_of_an_entry_that_ran_is_new(status):
    """A crash or a hang is a regression with its evidence, with a baseline or without one."""
    for before in (kept(), None):
        verdict = judge_entry(before, failed("crashed", status))

        assert verdict.verdict == "regression"
        assert [one.verdict for one in verdict.metrics] == ["new_failure"]
        assert "the log says crashed" in verdict.metrics[0].message


def test_rejected_settings_are_a_kind_of_their_own():
    """A flag that the build no longer has is no crash."""
    gone = EntryFailure("rejected", "error: invalid argument: --n-cpu-moe", "load", "unknown_flag")

    verdict = judge_entry(kept(), failed(status="rejected", failure=gone))

    assert [one.verdict for one in verdict.metrics] == ["preset_rejected"]
    assert gone.evidence in verdict.metrics[0].message


def test_failure_in_the_baseline_is_no_regression_and_its_end_an_improvement():
    """The same failure and another one are failing; a night that runs has recovered."""
    before = BaselineEntry(failed("out_of_memory"), kept().nights)

    again = judge_entry(before, failed("out_of_memory"))
    other = judge_entry(before, failed("crashed"))
    over = judge_entry(before, night(20))

    assert (again.verdict, other.verdict, over.verdict) == ("failing", "failing", "improvement")
    assert by_metric(over)["outcome"].verdict == "recovered"
    assert by_metric(over)["request_s"].verdict == "same"


@pytest.mark.parametrize("status", ["missing_hardware", "not_run"])
def test_entry_that_was_never_launched_is_skipped(status):
    """The notes have the reason, and the date of the last measurement."""
    reason = EntryFailure("usage", "no device CUDA3", "plan")

    verdict = judge_entry(kept(), failed(status=status, failure=reason))

    assert (verdict.verdict, verdict.metrics) == ("skipped", ())
    assert "no device CUDA3" in verdict.notes[0]
    assert "2026-11-04" in verdict.notes[1]


def test_entry_without_a_baseline_is_new():
    """Its figures have no verdict."""
    verdict = judge_entry(None, night(20))

    assert verdict.verdict == "new"
    assert by_metric(verdict)["request_s"].now == pytest.approx(3.1, rel=0.02)
    assert by_metric(verdict)["request_s"].verdict == "unknown"


def test_environment_changes_are_listed():
    """Driver, clocks and busy cores are listed; a clock that varies a little is not."""
    environment = EnvironmentSnapshot(
        driver="590.2",
        build="b11434",
        model_digest="beef",
        clocks_mhz={"CUDA0": 1200.0, "cpu": 3050.0},
        others_cores=3.0,
        remarks=("the hypervisor gives 20% of the CPU time to others",),
    )

    verdict = judge_entry(kept(), night(20, environment=environment))

    assert verdict.verdict == "same"
    assert verdict.environment_changes == (
        "driver: 580.1, now 590.2",
        "clock of CUDA0: 1900 MHz, now 1200 MHz",
        "other processes: 0.1 cores busy, now 3.0",
        "the hypervisor gives 20% of the CPU time to others",
    )


def test_changed_task_starts_a_new_baseline():
    """Nothing is compared with the times of other requests, and the change is listed."""
    before = kept(environment=EnvironmentSnapshot(task="context 4096"))
    other = EnvironmentSnapshot(task="context 8192")

    verdict = judge_entry(before, night(20, environment=other, launches=launches(slowdown=1.5)))

    assert verdict.verdict == "new"
    assert verdict.environment_changes == ("task: context 4096, now context 8192",)
    assert len(verdict.notes) == 1


def test_document_lists_names():
    """An entry with a regression and an improvement is in both lists."""
    mixed = judge_entry(
        kept(),
        night(20, launches=launches(slowdown=0.9, seed=20), peak_mib={"CUDA0": 12_000.0}),
    )
    skipped = judge_entry(None, failed(status="missing_hardware", name="other"))

    document = sweep_document([mixed, skipped])

    assert document["regressions"] == ["qwen"]
    assert document["improvements"] == ["qwen"]
    assert document["skipped"] == ["other"]
    assert document["entries"][0]["kinds"] == ["more_memory"]
    assert [entry["verdict"] for entry in document["entries"]] == ["regression", "skipped"]


def test_every_kind_of_regression_can_happen():
    """Each kind is the verdict on some night."""
    moved = BoundaryRow("balanced", "f16", 18, 17, "crashed", proven=True)
    nights = (
        night(20, launches=launches(slowdown=1.2, seed=20)),
        night(20, peak_mib={"CUDA0": 12_000.0}),
        night(20, boundary=(moved,)),
        failed(),
        failed(status="rejected"),
        night(20, answers=(answer(range(900, 924), "lost"),) * 2),
    )

    found = {one.verdict for now in nights for one in judge_entry(kept(), now).regressions}

    assert found == set(REGRESSIONS)


@pytest.mark.parametrize(
    ("mib", "expected"), [(11_400, "more_memory"), (11_050, "same"), (10_600, "less_memory")]
)
def test_memory_counts_beyond_the_threshold(mib, expected):
    """A change by 400 MiB counts, one by 50 MiB does not."""
    verdict = judge_entry(kept(), night(20, peak_mib={"CUDA0": float(mib), "host": 2_000.0}))

    assert by_metric(verdict)["peak_mib CUDA0"].verdict == expected


@pytest.mark.parametrize(
    ("before_mib", "mib", "expected"),
    [
        (2_000.0, 2_400.0, "same"),
        (2_000.0, 2_600.0, "more_memory"),
        (40_000.0, 41_500.0, "same"),
        (40_000.0, 43_000.0, "more_memory"),
    ],
)
def test_host_memory_has_a_larger_threshold(before_mib, mib, expected):
    """Allocators move it by hundreds of MiB, mapped files by a share of the model."""
    before = kept(peak_mib={"host": before_mib})

    verdict = judge_entry(before, night(20, peak_mib={"host": mib}))

    assert by_metric(verdict)["peak_mib host"].verdict == expected


def test_memory_of_other_settings_is_not_compared():
    """A tune with another winner needs other memory, which a note says."""
    other = replace(WINNER, digest="other")
    verdict = judge_entry(kept(), night(20, winner=other, peak_mib={"CUDA0": 12_000.0}))

    assert by_metric(verdict)["peak_mib CUDA0"].verdict == "unknown"
    assert any("other settings" in note for note in verdict.notes)


def test_missing_memory_counter_is_unknown():
    """Memory without a counter is neither zero nor less."""
    verdict = judge_entry(kept(), night(20, peak_mib={"CUDA0": None, "host": None}))

    assert by_metric(verdict)["peak_mib CUDA0"].verdict == "unknown"
    assert verdict.verdict == "same"


@given(st.floats(0, 30_000), st.floats(0, 5_000))
def test_more_memory_is_never_judged_better(mib, more):
    """A larger peak never moves the verdict towards less memory."""
    rank = {"more_memory": 0, "same": 1, "less_memory": 2}
    nights = [night(20, peak_mib={"CUDA0": value}) for value in (mib, mib + more)]
    found = [by_metric(judge_entry(kept(1), now))["peak_mib CUDA0"].verdict for now in nights]

    assert rank[found[1]] <= rank[found[0]]


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
def test_boundary_moves_only_if_a_launch_shows_it(fits, fails, outcome, expected):
    """A layer less is a regression once the baseline's value was launched and failed."""
    row = BoundaryRow("balanced", "f16", fits, fails, outcome, proven=False)

    verdict = judge_entry(kept(), night(20, boundary=(row,)))

    assert by_metric(verdict)["boundary balanced f16"].verdict == expected


def test_boundary_of_another_layout_is_not_compared():
    """Rows are compared with the baseline's row of their layout and KV type."""
    row = BoundaryRow("capacity", "f16", 20, 19, "out_of_memory", proven=True)

    verdict = judge_entry(kept(), night(20, boundary=(row,)))

    assert by_metric(verdict)["boundary capacity f16"].verdict == "unknown"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"ubatch": 512}, {"ubatch": 2048}, "unknown"),
        ({"experts": {}}, {"experts": {"prefetch_slots": 4}}, "unknown"),
        ({"experts": {"moe_cache_mib": 800}}, {"experts": {}}, "unknown"),
        ({"experts": None}, {"experts": {"prefetch_slots": 4}}, "boundary_moved"),
        (
            {"experts": {"prefetch_slots": 4}},
            {"experts": {"prefetch_slots": 4}},
            "boundary_moved",
        ),
    ],
)
def test_boundary_with_other_device_memory_is_not_compared(before, after, expected):
    """Compute buffers, slots and caches take memory; what a record lacks is no difference."""
    row = BoundaryRow("balanced", "f16", 17, 16, "out_of_memory", proven=True)
    tonight = replace(row, fits=20, fails=19, **after)

    verdict = judge_entry(kept(boundary=(replace(row, **before),)), night(20, boundary=(tonight,)))

    assert by_metric(verdict)["boundary balanced f16"].verdict == expected


def test_boundary_gain_needs_a_launch_of_the_baseline():
    """If the baseline only predicted a failure, a value that fits now proves nothing."""
    predicted = BoundaryRow("balanced", "f16", 17, 16, None, proven=False)
    row = BoundaryRow("balanced", "f16", 16, 15, "out_of_memory", proven=True)

    verdict = judge_entry(kept(boundary=(predicted,)), night(20, boundary=(row,)))

    assert by_metric(verdict)["boundary balanced f16"].verdict == "undecided"


def test_different_answers_are_a_regression():
    """Another token where the model was sure is no rounding."""
    wrong = answer((100, 101, *range(500, 522)), "so it does not")
    now = night(20, answers=(wrong, answer(range(300, 324), "and so on")))

    assert by_metric(judge_entry(kept(), now))["answers"].verdict == "output_changed"


def test_answers_are_compared_with_the_reference_first():
    """Answers that the old runtime gives tonight as well are right."""
    both = (answer(range(700, 724), "new text"),)

    verdict = judge_entry(kept(), night(20, answers=both, reference_answers=both))

    assert by_metric(verdict)["answers"].verdict == "same"
    assert by_metric(verdict)["answers"].against == "reference"


def test_answers_of_another_model_or_wider_cache_are_not_compared():
    """A model file that changed is listed with the environment."""
    other = replace(night().environment, model_digest="cafe")
    narrow = replace(WINNER, params={"cache_type_k": "q8_0", "cache_type_v": "q8_0"})

    by_model = judge_entry(kept(), night(20, environment=other))
    by_cache = judge_entry(kept(winner=narrow), night(20))

    assert by_metric(by_model)["answers"].verdict == "unknown"
    assert any("model file" in change for change in by_model.environment_changes)
    assert by_metric(by_cache)["answers"].verdict == "unknown"


def test_answers_of_a_narrower_cache_are_scored():
    """A good score is the same, as for the winner of a tune; a poor one is a regression."""
    narrow = replace(WINNER, params={"cache_type_k": "q4_0", "cache_type_v": "q4_0"})
    lost = (answer(range(900, 924), "lost"),) * 2

    good = judge_entry(kept(), night(20, winner=narrow))
    poor = judge_entry(kept(), night(20, winner=narrow, answers=lost))

    assert by_metric(good)["answers"].verdict == "same"
    assert by_metric(poor)["answers"].verdict == "output_changed"


def test_missing_answers_have_no_verdict():
    """Answers that were switched off have no verdict; without a baseline's it is unknown."""
    assert "answers" not in by_metric(judge_entry(kept(), night(20, answers=())))
    assert by_metric(judge_entry(kept(answers=()), night(20)))["answers"].verdict == "unknown"
