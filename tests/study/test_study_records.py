"""Launches in progress when autofit or the machine went down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from study.study_sample import header, trial
from trial.purpose_sample import purpose_of

from autofit.study.study_folder import Study
from autofit.study.study_records import LOST_LAUNCH
from autofit.trial.candidate import Candidate
from autofit.trial.trial import Trial


def _mark(path: Path, **changes) -> None:
    """Leave the mark of a launch, as after the death of autofit."""
    study = Study.resume(path, header())
    number = study.next_number()
    started = Trial(
        number,
        purpose_of("boundary"),
        Candidate({"n_cpu_moe": 5}),
        LOST_LAUNCH,
        layout="balanced",
        started_at=9.0,
    )
    with study.launching(started):
        mark = json.loads((path / f"trials/{number:04d}.running").read_text())
    study.close()
    (path / f"trials/{number:04d}.running").write_text(json.dumps({**mark, **changes}))


def test_a_launch_during_a_crash_of_the_machine_is_a_crash(tmp_path):
    """After a boot the launch in progress counts as crashed."""
    Study.create(tmp_path / "study", header()).close()
    _mark(tmp_path / "study", boot_id="an earlier boot")

    with Study.resume(tmp_path / "study", header()) as study:
        (crashed,) = study.trials()

        assert crashed.outcome == LOST_LAUNCH
        assert (crashed.phase, crashed.layout) == ("boundary", "balanced")
        assert crashed.candidate == Candidate({"n_cpu_moe": 5})
        assert "launch 1" in study.notices[0]
    with Study.resume(tmp_path / "study", header()) as study:
        assert len(study.trials()) == 1
        assert study.notices == []


def test_a_launch_cut_off_by_a_kill(tmp_path):
    """Without a boot it is no trial, but its number and log are not reused."""
    Study.create(tmp_path / "study", header()).close()
    _mark(tmp_path / "study")

    with Study.resume(tmp_path / "study", header()) as study:
        assert study.trials() == ()
        assert study.cut_off() == (1,)
        assert study.next_number() == 2
        assert "launch 1" in study.notices[0]


def test_a_trial_written_before_the_kill_counts(tmp_path):
    """The mark of a finished trial is removed, also after a boot."""
    Study.create(tmp_path / "study", header()).close()
    _mark(tmp_path / "study", boot_id="an earlier boot")
    (tmp_path / "study/trials/0001.json").write_text(
        json.dumps({"schema": 1, **trial(1).to_dict()})
    )

    with Study.resume(tmp_path / "study", header()) as study:
        assert study.trials() == (trial(1),)
        assert study.cut_off() == ()


def test_a_damaged_mark_does_not_prevent_a_resume(tmp_path):
    """A mark that cannot be read counts as cut off."""
    Study.create(tmp_path / "study", header()).close()
    (tmp_path / "study/trials/0003.running").write_bytes(b"\x00\x00")

    with Study.resume(tmp_path / "study", header()) as study:
        assert study.cut_off() == (3,)
        assert study.next_number() == 4


def test_the_mark_is_removed_by_an_exception(tmp_path):
    """An exception during a launch leaves no mark."""
    study = Study.create(tmp_path / "study", header())
    mark = tmp_path / "study/trials/0001.running"

    def launch():
        with study.launching(trial(1)):
            assert mark.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch()
    study.close()

    assert not mark.exists()
