"""What becomes of a launch that was under way when autofit or the machine went down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from study.study_sample import header, trial
from trial.purpose_sample import purpose_of

from autofit.study.running_mark import MACHINE_WENT_DOWN
from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Crashed


def _mark(path: Path, **changes) -> None:
    """Leave the mark of a launch behind, as a death of autofit would."""
    study = Study.resume(path, header())
    candidate = Candidate({"n_cpu_moe": 5})
    number = study.next_number()
    with study.launching(
        number,
        purpose=purpose_of("boundary"),
        candidate=candidate,
        layout="balanced",
        started_at=9.0,
    ):
        mark = json.loads((path / f"trials/{number:04d}.running").read_text())
    study.close()
    (path / f"trials/{number:04d}.running").write_text(json.dumps({**mark, **changes}))


def test_launch_during_which_the_machine_went_down_is_a_crash(tmp_path):
    """After a boot the candidate that was running counts as crashed, with that evidence."""
    Study.create(tmp_path / "study", header()).close()
    _mark(tmp_path / "study", boot_id="an earlier boot")

    with Study.resume(tmp_path / "study", header()) as study:
        (crashed,) = study.trials()

        assert crashed.outcome == Crashed(stage="load", evidence=MACHINE_WENT_DOWN)
        assert (crashed.phase, crashed.layout) == ("boundary", "balanced")
        assert crashed.candidate == Candidate({"n_cpu_moe": 5})
        assert "not tried again" in study.notices[0]
    with Study.resume(tmp_path / "study", header()) as study:
        assert len(study.trials()) == 1
        assert study.notices == []


def test_launch_cut_off_by_a_kill_may_be_tried_again(tmp_path):
    """Without a boot in between it is no trial, but its number and log are not reused."""
    Study.create(tmp_path / "study", header()).close()
    _mark(tmp_path / "study")

    with Study.resume(tmp_path / "study", header()) as study:
        assert study.trials() == ()
        assert study.cut_off() == (1,)
        assert study.next_number() == 2
        assert "may be tried again" in study.notices[0]


def test_trial_written_just_before_the_kill_counts(tmp_path):
    """A mark beside a finished trial is dropped, also after a boot."""
    Study.create(tmp_path / "study", header()).close()
    _mark(tmp_path / "study", boot_id="an earlier boot")
    (tmp_path / "study/trials/0001.json").write_text(
        json.dumps({"schema": 1, **trial(1).to_dict()})
    )

    with Study.resume(tmp_path / "study", header()) as study:
        assert study.trials() == (trial(1),)
        assert study.cut_off() == ()


def test_garbage_mark_does_not_stop_a_resume(tmp_path):
    """A mark that cannot be read is put aside."""
    Study.create(tmp_path / "study", header()).close()
    (tmp_path / "study/trials/0003.running").write_bytes(b"\x00\x00")

    with Study.resume(tmp_path / "study", header()) as study:
        assert study.cut_off() == (3,)
        assert study.next_number() == 4


def test_mark_goes_when_the_launch_fails_inside_autofit(tmp_path):
    """An exception during a launch leaves no mark: the server has been stopped by then."""
    study = Study.create(tmp_path / "study", header())
    mark = tmp_path / "study/trials/0001.running"

    def launch():
        with study.launching(
            1, purpose=purpose_of("search"), candidate=Candidate({}), started_at=0.0
        ):
            assert mark.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch()
    study.close()

    assert not mark.exists()
