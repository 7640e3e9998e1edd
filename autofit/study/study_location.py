"""The folder of a study on disk: its name, its lock, and its reserve of disk space."""

from __future__ import annotations

import os
import re
import unicodedata
from contextlib import suppress
from datetime import date
from itertools import count
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from autofit.errors import AutofitError, UsageError
from autofit.study.durable_file import storage_error, write_durably

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 60
_OWN_NAMES = {".lock", ".reserve", "trials"}
# Enough for the trial during which the disk becomes full: the reserve is released for it.
_RESERVE_BYTES = 512 * 1024


def safe_name(text: str) -> str:
    """Return a similar name of at most 60 ASCII characters that any file system accepts.

    The file ending and the shard number of a model are removed.
    """
    stem = _SHARD.sub("", re.sub(r"\.gguf$", "", text, flags=re.IGNORECASE))
    ascii_only = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
    return _UNSAFE.sub("-", ascii_only)[:_LONGEST].strip("-._") or "model"


def user_data_folder() -> Path:
    """Return the user's folder for data that autofit keeps between runs."""
    return platformdirs.user_data_path("autofit")


def create_study_folder(
    model_name: str, *, today: date, parent: Path | None = None, fallback: Path | None = None
) -> Path:
    """Create an empty folder `<model>-<date>-<n>` and return its path.

    It is in `parent`, by default `results` in the working directory. If that is not writable,
    it is in `fallback`, by default `studies` in the user's data folder.

    Raises:
        AutofitError: neither is writable.
    """
    name = f"{safe_name(model_name)}-{today:%Y-%m-%d}"
    try:
        return _create_numbered(parent or Path.cwd() / "results", name)
    except OSError:
        folder = fallback or user_data_folder() / "studies"
    try:
        return _create_numbered(folder, name)
    except OSError as error:
        raise storage_error(error, folder) from error


def _create_numbered(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        with suppress(FileExistsError):
            folder = parent / f"{name}-{number}"
            folder.mkdir()
            return folder
    raise AssertionError  # count() does not end


def lock_study(path: Path) -> FileLock:
    """Lock a study folder; the system releases the lock when the process dies.

    Raises:
        AutofitError: another process has locked it, or the file system has no locks.
        OSError: the lock file cannot be written.
    """
    lock = FileLock(path / ".lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise AutofitError(
            f"another autofit is writing the study {path}",
            "wait until it ends, or choose another folder with `--study DIR`",
        ) from error
    except NotImplementedError as error:
        raise AutofitError(
            f"the file system of {path} cannot lock files",
            "put the study on a local disk with `--study DIR`",
        ) from error
    return lock


def require_new_folder(path: Path) -> None:
    """Accept only an empty folder, or one in which a study was never completely created.

    Raises:
        UsageError: there is a study already, or other files.
    """
    if (path / "study.json").exists():
        raise UsageError(
            f"there is a study in {path} already",
            "continue it with `--resume`, or choose another `--study DIR`",
        )
    names = {entry.name for entry in path.iterdir() if not entry.name.endswith(".tmp")}
    foreign = sorted(names - _OWN_NAMES)
    if foreign or any((path / "trials").glob("*")):
        raise UsageError(
            f"{path} is not empty and not a study: it has {', '.join(foreign[:3]) or 'trials'}",
            "choose a new folder with `--study DIR`",
        )


def reserve_disk(path: Path) -> None:
    """Occupy some disk space, for a trial during which the disk becomes full.

    The bytes are random, so that a file system with compression cannot shrink them.

    Raises:
        OSError: the disk is full already.
    """
    reserve = path / ".reserve"
    if not reserve.exists():
        reserve.write_bytes(os.urandom(_RESERVE_BYTES))


def write_with_reserve(path: Path, file: Path, text: str) -> None:
    """Try to write a file after releasing the reserve."""
    with suppress(OSError):
        (path / ".reserve").unlink()
        write_durably(file, text)
