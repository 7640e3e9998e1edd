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

from filelock import FileLock, Timeout

from autofit.errors import AutofitError, MachineInUseError

FOLDER_VARIABLE = "AUTOFIT_LOCK_DIR"
# All users of a machine share these; each user can have another TMPDIR.
_SHARED_FOLDERS = (Path("/run/lock"), Path("/var/lock"), Path("/tmp"))  # noqa: S108
_OWN_FOLDER = "autofit"
_LOCK_NAME = "autofit.lock"
_HOLDER_NAME = "autofit.holder.json"
_FILE_MODE = 0o666
_FOLDER_MODE = 0o777  # with the sticky bit filelock would trust no other user


@contextlib.contextmanager
def machine_lock(study: str, *, folder: Path | None = None) -> Iterator[Callable[[str], None]]:
    """Lock the machine while measuring for a study; yield a function that changes its name.

    The system releases the lock when its holder dies. The lock is in `folder`; by default in
    `AUTOFIT_LOCK_DIR`, or in a folder that all users share.

    Raises:
        MachineInUseError: another autofit has locked it; the message names it.
        AutofitError: the lock cannot be created.
    """
    folder = folder or find_lock_folder()
    path, holder = folder / _LOCK_NAME, folder / _HOLDER_NAME
    try:
        _make_folder(folder)
        # Other users must be able to lock the file that one user has created.
        lock = FileLock(path, timeout=0, mode=_FILE_MODE)
        lock.acquire()
    except Timeout:
        raise MachineInUseError(*_describe_holder(holder)) from None
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
    """Record the holder for the message to others; a failure to do so is ignored."""
    text = json.dumps({"pid": os.getpid(), "study": study, "since": time.time()})
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        fd = os.open(path, flags, _FILE_MODE)
        with os.fdopen(fd, "w") as file:
            file.write(text)
            if os.fstat(fd).st_uid == os.geteuid():
                os.fchmod(fd, _FILE_MODE)


def _describe_holder(path: Path) -> tuple[str, str]:
    """Return the message and the hint about the lock's holder."""
    try:
        holder = json.loads(path.read_text())
        pid, study, since = int(holder["pid"]), str(holder["study"]), float(holder["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return "another autofit is measuring on this machine", "wait until it is done"
    clock = time.strftime("%H:%M", time.localtime(since))
    who = f"process {pid}, study {study}, since {clock}"
    return (
        f"another autofit is measuring on this machine: {who}",
        f"wait until it is done, or stop it with `kill {pid}`",
    )
