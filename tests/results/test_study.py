"""The study folder: what is written stays, whatever happens in between."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from results.study_sample import ENVIRONMENT, header, trial

from autofit.errors import AutofitError, UsageError
from autofit.results.running import MACHINE_WENT_DOWN
from autofit.results.skipped import SkippedCandidate
from autofit.results.study import Study
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Crashed, OutOfMemory, Skipped

TESTS = Path(__file__).parents[1]
REPOSITORY = TESTS.parent


def _python(code: str, *arguments: str, **options) -> subprocess.Popen[str]:
    """Start a Python process in which the tests' modules can be imported."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_trials_read_back_equal(tmp_path):
    """Trials come back as they were written, in the order of their numbers."""
    failed = trial(2, OutOfMemory("context", "cudaMalloc failed", buffer="kv"), n_cpu_moe=3)
    with Study.create(tmp_path / "study", header()) as study:
        study.write_trial(failed)
        study.write_trial(trial(1))

        assert study.next_number() == 3

    reread = Study.open(tmp_path / "study")

    assert reread.trials() == (trial(1), failed)
    assert reread.header == header()
    assert reread.notices == []


def test_conclusion_and_outputs_are_kept(tmp_path):
    """What the tune concluded comes back, and reports and presets lie in the folder."""
    with Study.create(tmp_path / "study", header()) as study:
        study.conclude({"gain": None, "launches": 3})
        study.write_output("presets/winner.ini", "[model]\n")

    assert Study.open(tmp_path / "study").result == {"gain": None, "launches": 3}
    assert (tmp_path / "study/presets/winner.ini").read_text() == "[model]\n"


def test_text_that_is_no_unicode_survives(tmp_path):
    """A path of raw bytes comes back from a trial and goes into an output as those bytes."""
    path = os.fsdecode(b"/models/caf\xe9.gguf")
    with Study.create(tmp_path / "study", header(model_path=path)) as study:
        study.write_trial(replace(trial(1), argv=("llama-server", "-m", path)))
        study.write_output("presets/x", path)

    reread = Study.open(tmp_path / "study")

    assert reread.header.model_path == path
    assert reread.trials()[0].argv[2] == path
    assert (tmp_path / "study/presets/x").read_bytes() == os.fsencode(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00", b"[]", b"{}", b'{"schema": 1}', b'{"schema": "1"}', b"null"],
)
def test_garbage_trial_is_left_out_with_a_notice(tmp_path, content):
    """A torn or foreign file is named, not read, not removed, and its number stays taken."""
    with Study.create(tmp_path / "study", header()) as study:
        study.write_trial(trial(1))
        study.write_trial(trial(2))
        damaged = tmp_path / "study/trials/0002.json"
        damaged.write_bytes(content)
        (tmp_path / "study/trials/notes.txt").write_text("mine")

        assert study.trials() == (trial(1),)
        assert "0002.json" in study.notices[0]
        assert study.next_number() == 3
        assert damaged.read_bytes() == content


def test_trial_under_another_number_is_left_out(tmp_path):
    """A copied trial file is not counted twice."""
    with Study.create(tmp_path / "study", header()) as study:
        study.write_trial(trial(1))
        source = tmp_path / "study/trials/0001.json"
        (tmp_path / "study/trials/0009.json").write_bytes(source.read_bytes())

        assert study.trials() == (trial(1),)
        assert "0009.json holds trial 1" in study.notices[0]


def test_skipped_candidates_survive_a_torn_line(tmp_path):
    """What follows a line cut off by a kill is read, and the cut one is reported."""
    first = SkippedCandidate(Candidate({"n_cpu_moe": 1}), Skipped("dominated"), "search", "x")
    second = SkippedCandidate(Candidate({"n_cpu_moe": 2}), Skipped("estimate"), "boundary")
    with Study.create(tmp_path / "study", header()) as study:
        study.skip(first)
        with (tmp_path / "study/skipped.jsonl").open("a") as file:
            file.write('{"phase": "sea')
        study.skip(second)

        assert study.skipped() == (first, second)
        assert "1 unreadable line" in study.notices[0]


def test_two_writers_are_refused(tmp_path):
    """A second autofit is turned away while the first writes, and may read all the same."""
    with Study.create(tmp_path / "study", header()) as study:
        study.write_trial(trial(1))
        child = _python(
            """
            import sys
            from pathlib import Path
            from results.study_sample import header
            from autofit.errors import AutofitError
            from autofit.results.study import Study
            try:
                Study.resume(Path(sys.argv[1]), header())
            except AutofitError as error:
                print(error.message, "|", len(Study.open(Path(sys.argv[1])).trials()))
            """,
            str(study.path),
        )
        out, err = child.communicate(timeout=30)

        assert "another autofit is writing" in out, err
        assert out.strip().endswith("| 1")
    with Study.resume(tmp_path / "study", header()) as study:
        assert len(study.trials()) == 1


def test_reader_cannot_write(tmp_path):
    """A study opened for reading refuses to be written."""
    Study.create(tmp_path / "study", header()).close()
    with pytest.raises(RuntimeError, match="reading only"):
        Study.open(tmp_path / "study").write_trial(trial(1))


def test_existing_study_is_not_overwritten(tmp_path):
    """Starting anew in a folder with a study points to --resume and touches nothing."""
    with Study.create(tmp_path / "study", header()) as study:
        study.write_trial(trial(1))

    with pytest.raises(UsageError) as caught:
        Study.create(tmp_path / "study", header(seed=8))

    assert "--resume" in caught.value.hint
    assert Study.open(tmp_path / "study").header.seed == 7


def test_foreign_folder_is_refused(tmp_path):
    """A folder with something else in it is neither written nor read as a study."""
    (tmp_path / "thesis.tex").write_text("chapter 1")

    with pytest.raises(UsageError, match=r"thesis\.tex"):
        Study.create(tmp_path, header())
    with pytest.raises(UsageError, match="is no study"):
        Study.open(tmp_path)
    with pytest.raises(UsageError, match="is no study"):
        Study.open(tmp_path / "thesis.tex")
    with pytest.raises(AutofitError):
        Study.create(tmp_path / "thesis.tex", header())


def test_folder_left_before_the_study_began_is_used(tmp_path):
    """A kill between making the folder and writing study.json does not block the folder."""
    Study.create(tmp_path / "study", header()).close()
    (tmp_path / "study/study.json").unlink()

    Study.create(tmp_path / "study", header()).close()

    assert Study.open(tmp_path / "study").trials() == ()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"environment": replace(ENVIRONMENT, model_digest="ffff")}, "model: 0011"),
        ({"environment": replace(ENVIRONMENT, devices=())}, "devices: CUDA0"),
        ({"dialect": "ik_llama_server"}, "dialect: llama_server, now ik"),
        ({"options": {"kv_floor": "q4_0", "set": {"parallel": 1}}}, "options: other kv_floor"),
        ({"space": {"parameters": {}}}, "space: other parameters"),
    ],
)
def test_resume_under_other_conditions_is_refused(tmp_path, changes, word):
    """Trials of another model, machine or purpose are not mixed in, and the message says why."""
    Study.create(tmp_path / "study", header()).close()

    with pytest.raises(UsageError, match=word):
        Study.resume(tmp_path / "study", header(**changes))


def test_resume_accepts_what_changes_no_measurement(tmp_path):
    """Path, date and command line may differ, and so may tuples from lists."""
    Study.create(tmp_path / "study", header(space={"a": (1, 2)})).close()
    now = header(space={"a": [1, 2]}, model_path="/mnt/x.gguf", created_at=1.0, argv=("autofit",))

    Study.resume(tmp_path / "study", now).close()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"schema": 1, "seed": 3}'])
def test_damaged_head_is_an_error_with_a_hint(tmp_path, content):
    """Without a readable head nothing is guessed, and the trials are said to be safe."""
    Study.create(tmp_path / "study", header()).close()
    (tmp_path / "study/study.json").write_bytes(content)

    with pytest.raises(AutofitError, match="damaged") as caught:
        Study.open(tmp_path / "study")

    assert "trials/ are untouched" in caught.value.hint


def test_newer_study_is_refused(tmp_path):
    """A study of a later autofit asks for an upgrade instead of being misread."""
    Study.create(tmp_path / "study", header()).close()
    file = tmp_path / "study/study.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 99}))

    with pytest.raises(AutofitError, match="newer autofit") as caught:
        Study.open(tmp_path / "study")

    assert "upgrade" in caught.value.hint


def _mark(path: Path, **changes) -> None:
    """Leave the mark of a launch behind, as a death of autofit would."""
    study = Study.resume(path, header())
    candidate = Candidate({"n_cpu_moe": 5})
    number = study.next_number()
    with study.launching(
        number, candidate=candidate, phase="boundary", layout="balanced", started_at=9.0
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
        with study.launching(1, candidate=Candidate({}), phase="search", started_at=0.0):
            assert mark.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch()
    study.close()

    assert not mark.exists()


@pytest.mark.parametrize("delay_s", [0.0, 0.004, 0.02])
def test_kill_loses_no_trial_that_was_told(tmp_path, delay_s):
    """Every trial whose writing returned before a kill -9 is read back, and none is torn."""
    child = _python(
        """
        import sys
        from pathlib import Path
        from results.study_sample import header, trial
        from autofit.results.study import Study
        study = Study.create(Path(sys.argv[1]), header())
        for number in range(1, 100000):
            with study.launching(number, candidate=trial(number).candidate, phase="search",
                                 started_at=0.0):
                study.write_trial(trial(number))
            print(number, flush=True)
        """,
        str(tmp_path / "study"),
    )
    told = [int(child.stdout.readline()) for _ in range(5)]
    time.sleep(delay_s)
    child.send_signal(signal.SIGKILL)
    rest, _ = child.communicate(timeout=30)
    told += [int(line) for line in rest.splitlines()]

    with Study.resume(tmp_path / "study", header()) as study:
        numbers = [found.number for found in study.trials()]

        assert numbers[: len(told)] == told
        assert not [notice for notice in study.notices if "cannot be read" in notice]
        assert study.next_number() > told[-1]
        study.write_trial(trial(study.next_number()))


def _can_mount() -> bool:
    """Whether this user may mount a file system of its own, as most Linux systems allow."""
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and not subprocess.run(
            [unshare, "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"],
            check=False,
            capture_output=True,
        ).returncode
    )


@pytest.mark.skipif(not _can_mount(), reason="no user namespaces: no small disk can be mounted")
def test_full_disk_keeps_the_trial_and_says_so(tmp_path):
    """When the disk is full the measured trial goes into the reserve, and the run ends."""
    code = """
        import sys
        from pathlib import Path
        from results.study_sample import header, trial
        from autofit.errors import AutofitError
        from autofit.results.study import Study
        study = Study.create(Path(sys.argv[1]), header(), needed_mib=0)
        study.write_trial(trial(1))
        with study.log_path(2).open("wb", buffering=0) as log:
            for size in (65536, 1):
                try:
                    while log.write(b"x" * size):
                        pass
                except OSError:
                    pass
        for number in (2, 3):
            try:
                study.write_trial(trial(number))
                print(number, "written")
            except AutofitError as error:
                print(error.message, "|", error.hint)
        print([found.number for found in study.trials()])
        """
    done = subprocess.run(
        [
            *("unshare", "-Urm", "sh", "-c"),
            'mount -t tmpfs -o size=2m none "$1" && exec "$2" -c "$3" "$1/study"',
            *("sh", str(tmp_path), sys.executable, textwrap.dedent(code)),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    told, after, numbers = done.stdout.splitlines() or [done.stderr] * 3

    assert "no room to write" in told
    assert "--resume" in told
    assert after == "3 written"
    assert numbers == "[1, 2, 3]"


def test_write_that_fails_leaves_what_was_there(tmp_path):
    """A trial that cannot be written ends the run, and the file before it stays whole."""
    code = """
        import resource, sys
        from pathlib import Path
        from results.study_sample import header, trial
        from autofit.errors import AutofitError
        from autofit.results.study import Study
        study = Study.create(Path(sys.argv[1]), header())
        study.write_trial(trial(1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
        for number in (1, 2):
            try:
                study.write_trial(trial(number, n_cpu_moe=0))
            except AutofitError as error:
                print(error.message)
        """
    out, err = _python(code, str(tmp_path / "study")).communicate(timeout=30)

    assert [line.partition(" to write ")[0] for line in out.splitlines()] == ["no room"] * 2, err
    assert Study.open(tmp_path / "study").trials() == (trial(1),)
    assert not list((tmp_path / "study/trials").glob(".*tmp"))


def test_folder_that_cannot_be_written_is_an_error():
    """A read-only place is named, with what to do, before anything is launched."""
    with pytest.raises(AutofitError) as caught:
        Study.create(Path("/sys/kernel/autofit-study"), header(), needed_mib=0)

    assert "/sys/kernel/autofit-study" in caught.value.message
    assert "--study DIR" in caught.value.hint


def test_too_little_disk_is_refused_before_the_start(tmp_path):
    """A disk with less room than a study may need is named with its free space."""
    with pytest.raises(AutofitError, match="MiB of disk free"):
        Study.create(tmp_path / "study", header(), needed_mib=1e12)

    assert not (tmp_path / "study").exists()
