"""A lock for this machine: two runs that measure at the same time disturb each other."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from autofit.errors import AutofitError, MachineInUseError
from autofit.input_files import open_regular, parse_json, read_stream
from autofit.machine.kernel_files import read_text
from autofit.text_format import one_line

FOLDER_VARIABLE = "AUTOFIT_LOCK_DIR"
# All users of a machine share these; each user can have another TMPDIR.
_SHARED_FOLDERS = (Path("/run/lock"), Path("/var/lock"), Path("/tmp"))  # noqa: S108
_OWN_FOLDER = "autofit"
_LOCK_NAME = "autofit.lock"
_HOLDER_NAME = "autofit.holder.json"
_FILE_MODE = 0o666
_RECORD_MODE = 0o644
_RECORD_BYTES = 1 << 16
_LONGEST_NAME = 200
_IN_USE = "another autofit is measuring on this machine"
_POLL_S = 0.5
_FOLDER_MODE = 0o777  # with the sticky bit filelock would trust no other user


@contextlib.contextmanager
def machine_lock(
    study: str,
    *,
    folder: Path | None = None,
    wait_s: float = 0.0,
    report: Callable[[str], None] | None = None,
) -> Iterator[Callable[[str], None]]:
    """Lock the machine while measuring for a study; yield a function that changes its name.

    The system releases the lock when its holder dies. The lock is in `folder`; by default in
    `AUTOFIT_LOCK_DIR`, or in a folder that all users share. While another autofit has it, wait
    up to `wait_s` and keep calling `report` with a message that names the other.

    Raises:
        MachineInUseError: another autofit has locked it; the message names it.
        AutofitError: the lock cannot be created.
    """
    folder = folder or find_lock_folder()
    path, holder = folder / _LOCK_NAME, folder / _HOLDER_NAME
    deadline = time.monotonic() + wait_s
    try:
        _make_folder(folder)
        # Other users must be able to lock the file that one user has created.
        lock = FileLock(path, timeout=0, mode=_FILE_MODE)
        while not _acquire(lock):
            message = _describe_holder(path, holder)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise MachineInUseError(message, _HINT)
            if report is not None:
                report(message)
            time.sleep(min(_POLL_S, left_s))
    except OSError as error:
        raise AutofitError(
            f"cannot lock {path}: {error.strerror}",
            f"set {FOLDER_VARIABLE} to a writable folder",
        ) from error
    try:
        _write_holder(holder, study)
        yield lambda name: _write_holder(holder, name)
    finally:
        lock.release()


_HINT = "try again when it is done; `tune`, `probe`, `compare` and `sweep` wait for it with --wait"


def _acquire(lock: FileLock) -> bool:
    try:
        lock.acquire()
    except Timeout:
        return False
    return True


def find_lock_folder() -> Path:
    """Return the default folder of the lock."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    for folder in _SHARED_FOLDERS:
        # Root can write anywhere, but must use the same folder as other users.
        if folder.is_dir() and folder.stat().st_mode & stat.S_IWOTH:
            return folder / _OWN_FOLDER
    return Path(tempfile.gettempdir()) / _OWN_FOLDER


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(_FOLDER_MODE)  # the umask has removed bits


def _write_holder(path: Path, study: str) -> None:
    """Record the holder for the message to others; a failure to do so is ignored.

    The file is replaced, so that it belongs to the holder, and only the holder can write it.
    """
    text = json.dumps({"pid": os.getpid(), "study": study, "since": time.time()})
    with contextlib.suppress(OSError):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                os.fchmod(descriptor, _RECORD_MODE)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink()
            raise


def _describe_holder(lock: Path, record: Path) -> str:
    """Return the message about the lock's holder.

    All users can write in the folder. The record counts only if the process that holds the lock
    has written it.
    """
    try:
        with open_regular(record) as file:
            status = os.fstat(file.fileno())
            holder = parse_json(read_stream(file, _RECORD_BYTES))
        pid, study, since = int(holder["pid"]), str(holder["study"]), float(holder["since"])
        clock = time.strftime("%H:%M", time.localtime(since))
        owner = psutil.Process(pid).uids().effective
    except (OSError, psutil.Error, ValueError, KeyError, TypeError, OverflowError):
        return _IN_USE
    is_own = owner == status.st_uid and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not is_own or not _holds(pid, lock, is_own=owner == os.geteuid()):
        return _IN_USE
    name = one_line(study)[:_LONGEST_NAME]
    return f"{_IN_USE}: process {pid}, study {name}, since {clock}"


def _holds(pid: int, lock: Path, *, is_own: bool) -> bool:
    """Return whether a process holds the lock, by the kernel's list of locks.

    Without such a list only a process of this user is believed.
    """
    locks = read_text(Path("/proc/locks"))
    if not locks:
        return is_own
    inode = str(lock.stat().st_ino)
    rows = (line.split() for line in locks.splitlines())
    return any(
        len(row) > 5 and row[1] == "FLOCK" and row[4] == str(pid) and row[5].endswith(f":{inode}")  # noqa: PLR2004
        for row in rows
    )
