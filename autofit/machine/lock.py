"""A lock for this machine: two runs that measure at the same time disturb each other.

Runs that share a tune may measure at the same time on disjoint sets of devices. Each of them locks
its devices while it holds the lock of the machine, and then releases that. A run that uses the
whole machine keeps the lock of the machine, and needs that no device is locked.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

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
_DEVICE_LOCK = "autofit.device-{}.lock"
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
    devices: Sequence[str] = (),
    folder: Path | None = None,
    wait_s: float = 0.0,
    report: Callable[[str], None] | None = None,
) -> Iterator[Callable[[str], None]]:
    """Lock the machine while measuring for a study; yield a function that changes its name.

    With `devices`, lock only these, so that others can measure on the rest of the machine.
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
        locks: list[FileLock] = []
        while not _acquire(locks, path, devices):
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
        if not devices:
            _write_holder(holder, study)
        yield lambda name: None if devices else _write_holder(holder, name)
    finally:
        for lock in locks:
            lock.release()


_HINT = "try again when it is done; `tune`, `probe`, `compare` and `sweep` wait for it with --wait"


def _acquire(locks: list[FileLock], path: Path, devices: Sequence[str]) -> bool:
    """Add the locks of the machine, or of some of its devices; return False if one is taken."""
    folder = path.parent
    if devices:
        others = [folder / _DEVICE_LOCK.format(quote(name, safe="")) for name in devices]
    else:
        others = sorted(folder.glob(_DEVICE_LOCK.format("*")))
    try:
        for one in (path, *others):
            # Other users must be able to lock the file that one user has created.
            lock = FileLock(one, timeout=0, mode=_FILE_MODE)
            lock.acquire()
            locks.append(lock)
    except Timeout:
        for lock in locks:
            lock.release()
        locks.clear()
        return False
    if devices:
        locks.pop(0).release()
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
