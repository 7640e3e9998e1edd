"""The lock on this machine."""

from __future__ import annotations

import json
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
    assert "--wait" in e.value.hint


def test_a_wait_ends_when_the_holder_does(tmp_path: Path):
    """While another has the lock, the wait reports who it is, and takes the lock after it."""
    reports = []
    with holder(tmp_path) as process:

        def report(message: str) -> None:
            reports.append(message)
            if len(reports) > 1:
                process.stdin.close()

        with machine_lock("mine", folder=tmp_path, wait_s=30, report=report):
            assert process.wait(10) == 0
            assert "mine" in (tmp_path / "autofit.holder.json").read_text()

    # The record of a holder that is just ending is not believed any more.
    assert f"process {process.pid}, study results/night" in reports[0]


def test_a_wait_that_is_over_is_refused(tmp_path: Path):
    """A holder that outlasts the wait is named by the error."""
    with (
        holder(tmp_path) as process,
        pytest.raises(MachineInUseError, match=f"process {process.pid}"),
        machine_lock("mine", folder=tmp_path, wait_s=0.1),
    ):
        pass


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


_ESCAPES = "\x1b[2J\x1b]0;title\x07\r\nautofit: all is well\u202e\x9b1m"


def _message(folder: Path) -> str:
    """Return what a second autofit prints."""
    with (
        pytest.raises(MachineInUseError, match="another autofit is measuring") as caught,
        machine_lock("mine", folder=folder),
    ):
        pass
    return f"{caught.value.message}\n{caught.value.hint}"


@pytest.mark.parametrize(
    "record",
    [
        "{",
        "[]",
        "1",
        "[" * 100_000,
        '{"pid": 1e999, "study": "x", "since": 0}',
        '{"pid": -1, "study": "x", "since": 0}',
        '{"pid": PID, "study": "x", "since": 1e300}',
        '{"pid": 1, "study": "x", "since": 0}',
        '{"pid": OWN, "study": "x", "since": 0}',
        '{"pid": 999999999, "study": "x", "since": 0}',
        "x" * (1 << 20),
    ],
)
def test_only_the_holder_of_the_lock_is_named(record, tmp_path: Path):
    """A record that is damaged, or names a process that does not hold the lock, is not shown."""
    with holder(tmp_path) as process:
        (tmp_path / "autofit.holder.json").write_text(
            record.replace("PID", str(process.pid)).replace("OWN", str(os.getpid()))
        )
        message = _message(tmp_path)

    assert "process" not in message
    assert "kill" not in message


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_record_that_others_can_write_is_not_shown(mode, tmp_path: Path):
    """Its text may be of anybody, even if it names the right process."""
    with holder(tmp_path):
        (tmp_path / "autofit.holder.json").chmod(mode)
        assert "study" not in _message(tmp_path)


def test_the_record_has_no_effect_on_a_terminal(tmp_path: Path):
    """Escape sequences and line breaks in the name of a study are shown as text."""
    with holder(tmp_path) as process:
        record = {"pid": process.pid, "study": _ESCAPES + "x" * 9999, "since": 0}
        (tmp_path / "autofit.holder.json").write_text(json.dumps(record))
        message = _message(tmp_path)

    assert f"process {process.pid}" in message
    assert message.count("\n") == 1
    assert all(character.isprintable() for character in message.replace("\n", ""))
    assert len(message) < 500


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_record_that_is_no_file_is_not_read(kind, tmp_path: Path):
    """A pipe, a device and a folder in its place are neither waited for nor read."""
    with holder(tmp_path):
        path = tmp_path / "autofit.holder.json"
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
        assert "process" not in _message(tmp_path)
    with machine_lock("mine", folder=tmp_path):
        pass


def test_a_renamed_study_is_named(tmp_path: Path):
    """The function that the lock yields changes the name, and leaves only one record."""
    with machine_lock("before", folder=tmp_path) as rename:
        rename("after")
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["autofit.holder.json", "autofit.lock"]
        assert json.loads((tmp_path / "autofit.holder.json").read_text())["study"] == "after"


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
            pytest.raises(MachineInUseError, match=f"process {process.pid}") as caught,
            machine_lock("mine", folder=folder),
        ):
            pass
        assert "kill" not in caught.value.hint, "it is another user's process"


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


def test_runs_on_disjoint_devices_measure_together(tmp_path: Path):
    """Other devices can be locked meanwhile, but neither the same device nor the machine."""
    with machine_lock("a", devices=["CUDA0"], folder=tmp_path):
        with machine_lock("b", devices=["CUDA1", "Vulkan[0]"], folder=tmp_path):
            for devices in (["CUDA1", "CUDA2"], ["Vulkan[0]"], []):
                with (
                    pytest.raises(MachineInUseError),
                    machine_lock("c", devices=devices, folder=tmp_path),
                ):
                    pass
        with machine_lock("b", devices=["CUDA1"], folder=tmp_path):
            pass
    with (
        machine_lock("whole", folder=tmp_path),
        pytest.raises(MachineInUseError),
        machine_lock("d", devices=["CUDA3"], folder=tmp_path),
    ):
        pass
