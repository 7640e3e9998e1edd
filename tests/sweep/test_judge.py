"""The verdict on a night: failures, what was never measured, and the document of all."""

from __future__ import annotations

import pytest
from sweep.night_sample import (
    answer,
    by_metric,
    failed,
    kept,
    launches,
    night,
)

from autofit.sweep.entry_record import BoundaryRow, Failure
from autofit.sweep.environment_snapshot import EnvironmentSnapshot
from autofit.sweep.judge import judge
from autofit.sweep.kept_night import Kept
from autofit.sweep.sweep_document import sweep_document
from autofit.sweep.verdict import REGRESSIONS


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


def test_what_changed_around_it_stands_beside_the_verdict():
    """Driver, clocks and busy neighbours are named; a wandering clock is not."""
    around = EnvironmentSnapshot(
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
    other = {
        "environment": EnvironmentSnapshot(task="context 8192"),
        "launches": launches(slowdown=1.5),
    }
    verdict = judge(kept(environment=EnvironmentSnapshot(task="context 4096")), night(20, **other))

    assert verdict.verdict == "new"
    assert verdict.environment_changes == ("task: context 4096, now context 8192",)
    assert "begins anew" in verdict.notes[0]
