"""Kills and disk errors lose no trial that was reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from small_disk import needs_small_disk
from study.study_process import REPOSITORY, TESTS, python_process
from study.study_sample import header, trial

from autofit.errors import AutofitError
from autofit.study.study_folder import Study


@pytest.mark.parametrize("delay_s", [0.0, 0.004, 0.02])
def test_a_kill_loses_no_written_trial(tmp_path, delay_s):
    """After SIGKILL every written trial is complete."""
    child = python_process(
        """
        import sys
        from pathlib import Path
        from study.study_sample import header, trial
        from autofit.study.study_folder import Study
        study = Study.create(Path(sys.argv[1]), header())
        for number in range(1, 100000):
            one = trial(number)
            with study.launching(one):
                study.write_trial(one)
            print(number, flush=True)
        """,
        str(tmp_path / "study"),
    )
    written = [int(child.stdout.readline()) for _ in range(5)]
    time.sleep(delay_s)
    child.send_signal(signal.SIGKILL)
    rest, _ = child.communicate(timeout=30)
    written += [int(line) for line in rest.splitlines()]

    with Study.resume(tmp_path / "study", header()) as study:
        numbers = [found.number for found in study.trials()]

        assert numbers[: len(written)] == written
        assert not [notice for notice in study.notices if "cannot be read" in notice]
        assert study.next_number() > written[-1]
        study.write_trial(trial(study.next_number()))


@needs_small_disk
def test_a_full_disk_does_not_lose_the_trial(tmp_path):
    """On a full disk the measured trial is written with the reserve, and the run ends."""
    code = """
        import sys
        from pathlib import Path
        from study.study_sample import header, trial
        from autofit.errors import AutofitError
        from autofit.study.study_folder import Study
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
    written, after, numbers = done.stdout.splitlines() or [done.stderr] * 3

    assert "no room to write" in written
    assert "--resume" in written
    assert after == "3 written"
    assert numbers == "[1, 2, 3]"


def test_a_failed_write_keeps_the_old_file(tmp_path):
    """A trial that cannot be written ends the run, and the old file is unchanged."""
    code = """
        import resource, sys
        from pathlib import Path
        from study.study_sample import header, trial
        from autofit.errors import AutofitError
        from autofit.study.study_folder import Study
        study = Study.create(Path(sys.argv[1]), header())
        study.write_trial(trial(1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
        for number in (1, 2):
            try:
                study.write_trial(trial(number, n_cpu_moe=0))
            except AutofitError as error:
                print(error.message)
        """
    out, err = python_process(code, str(tmp_path / "study")).communicate(timeout=30)

    assert [line.partition(" to write ")[0] for line in out.splitlines()] == ["no room"] * 2, err
    assert Study.open(tmp_path / "study").trials() == (trial(1),)
    assert not list((tmp_path / "study/trials").glob(".*tmp"))


def test_a_read_only_folder_is_an_error():
    """A read-only folder is an error with a hint before any launch."""
    with pytest.raises(AutofitError) as caught:
        Study.create(Path("/sys/kernel/autofit-study"), header(), needed_mib=0)

    assert "/sys/kernel/autofit-study" in caught.value.message
    assert "--study DIR" in caught.value.hint


def test_too_little_disk_space_is_an_error(tmp_path):
    """A disk with too little space for a study is an error with its free space."""
    with pytest.raises(AutofitError, match="MiB of disk free"):
        Study.create(tmp_path / "study", header(), needed_mib=1e12)

    assert not (tmp_path / "study").exists()
