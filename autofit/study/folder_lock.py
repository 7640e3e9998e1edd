"""The folder of a study: taking it, locking it, and refusing one that is something else."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from autofit.errors import AutofitError, UsageError
from autofit.study.durable_file import write_durably

_OWN_NAMES = {".lock", ".reserve", "trials"}
# Enough for the trial that finds the disk full: its room is given back first.
_RESERVE_BYTES = 512 * 1024


def lock_folder(path: Path) -> FileLock:
    """The held lock of a study folder; the system releases it when the process dies.

    Raises:
        AutofitError: another process holds it, or the file system has no locks.
        OSError: the lock file cannot be written.
    """
    lock = FileLock(path / ".lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise AutofitError(
            f"another autofit is writing the study {path}",
            "wait until it has ended, or choose another folder with `--study DIR`",
        ) from error
    except NotImplementedError as error:
        raise AutofitError(
            f"the file system of {path} cannot lock files",
            "put the study on a local disk with `--study DIR`",
        ) from error
    return lock


def refuse_foreign(path: Path) -> None:
    """Let pass only a folder that is empty, or that a study had only begun to fill.

    Raises:
        UsageError: there is a study already, or something else.
    """
    if (path / "study.json").exists():
        raise UsageError(
            f"there is a study in {path} already",
            "go on with it with `--resume`, or choose another `--study DIR`",
        )
    names = {entry.name for entry in path.iterdir() if not entry.name.endswith(".tmp")}
    foreign = sorted(names - _OWN_NAMES)
    if foreign or any((path / "trials").glob("*")):
        raise UsageError(
            f"{path} is not empty and no study: it holds {', '.join(foreign[:3]) or 'trials'}",
            "choose a new folder with `--study DIR`",
        )


def hold_reserve(path: Path) -> None:
    """Take some room on the disk, for a trial that finds it full.

    Random bytes, so that a file system that compresses takes it too.

    Raises:
        OSError: there is no room already.
    """
    reserve = path / ".reserve"
    if not reserve.exists():
        reserve.write_bytes(os.urandom(_RESERVE_BYTES))


def write_from_reserve(path: Path, file: Path, text: str) -> bool:
    """Write a file in the room held in reserve, and tell whether that worked."""
    with suppress(OSError):
        (path / ".reserve").unlink()
        write_durably(file, text)
        return True
    return False
