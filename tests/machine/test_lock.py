"""The lock on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autofit.errors import AutofitError, MachineInUseError
from autofit.machine.lock import find_lock_folder, machine_lock

HOLD = """
import os, sys
from pathlib import Path
from autofit.machine.lock import machine_lock
folder = Path(sys.argv[1])
if len(sys.argv) > 2:
    with machine_lock("before", folder=folder / "imports-all"):
        os.setuid(int(sys.argv[2]))
with machine_lock("results/night", folder=folder):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path, *arguments: str) -> Iterator[subprocess.Popen]:
    """Yield another autofit that has locked the machine."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.stdin.close()


def test_the_error_names_the_holder(tmp_path: Path):
    """The error names the process and the study, and has exit code 4."""
    with (
        holder(tmp_path) as process,
        pytest.raises(MachineInUseError, match=f"process {process.pid}, study results/night") as e,
        machine_lock("mine", folder=tmp_path),
    ):
        pass

    assert e.value.exit_code == 4
    assert f"kill {process.pid}" in e.value.hint


def test_the_lock_is_released_by_a_death(tmp_path: Path):
    """A holder that was killed leaves nothing locked."""
    with holder(tmp_path) as process:
        process.kill()
        process.wait()
        with machine_lock("mine", folder=tmp_path):
            pass
    with machine_lock("again", folder=tmp_path):
        pass


def test_the_lock_is_released_by_an_exception(tmp_path: Path):
    """An exception releases the lock."""
    with pytest.raises(ZeroDivisionError), machine_lock("mine", folder=tmp_path):
        raise ZeroDivisionError
    with machine_lock("mine", folder=tmp_path):
        pass


def test_a_damaged_record_of_the_holder(tmp_path: Path):
    """An unknown holder gives the same kind of error."""
    with holder(tmp_path):
        (tmp_path / "autofit.holder.json").write_text("{")
        with (
            pytest.raises(MachineInUseError, match="another autofit is measuring"),
            machine_lock("mine", folder=tmp_path),
        ):
            pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_users_share_the_lock():
    """A lock file that one user created can be locked by another."""
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent) / "lock"
        with machine_lock("root", folder=folder):
            pass
        with (
            holder(folder, "4242") as process,
            pytest.raises(MachineInUseError, match=f"process {process.pid}"),
            machine_lock("mine", folder=folder),
        ):
            pass


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path):
    """A folder that cannot be created is an error with a hint."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(AutofitError, match="cannot lock") as caught,
        machine_lock("mine", folder=tmp_path / "file" / "lock"),
    ):
        pass

    assert "AUTOFIT_LOCK_DIR" in caught.value.hint


def test_the_default_folder_is_shared():
    """By default the lock is in a folder that every user can write."""
    script = "from autofit.machine.lock import find_lock_folder; print(find_lock_folder())"
    env = {name: value for name, value in os.environ.items() if name != "AUTOFIT_LOCK_DIR"}

    def folder(**extra: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", script],
            env={**env, **extra},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    assert Path(folder()).name == "autofit"
    assert Path(folder()).parent.stat().st_mode & 0o002
    assert folder(AUTOFIT_LOCK_DIR="/somewhere") == "/somewhere"
    assert find_lock_folder().is_absolute()
