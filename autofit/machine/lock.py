"""One autofit at a time on one machine: two that measure would disturb each other."""

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

# Where all users of a machine can meet; a user's own TMPDIR would part them.
SHARED_FOLDERS = (Path("/run/lock"), Path("/var/lock"), Path("/tmp"))  # noqa: S108
OWN_FOLDER = "autofit"
FOLDER_VARIABLE = "AUTOFIT_LOCK_DIR"
LOCK_NAME = "autofit.lock"
HOLDER_NAME = "autofit.holder.json"
EVERYBODY = 0o666
EVERYBODYS_FOLDER = 0o777  # without the sticky bit, under which filelock trusts no other user


@contextlib.contextmanager
def machine_lock(study: str, *, folder: Path | None = None) -> Iterator[Callable[[str], None]]:
    """Hold the machine while measuring for a study; yields what names the study anew.

    The system frees the lock when its holder dies, in whatever way. `folder` says where it is
    kept; by default a folder that all users share, or `AUTOFIT_LOCK_DIR`.

    Raises:
        MachineInUseError: another autofit holds it; the message says which.
        AutofitError: there is no place to keep it.
    """
    folder = folder or lock_folder()
    path, holder = folder / LOCK_NAME, folder / HOLDER_NAME
    try:
        _make_folder(folder)
        # Other users must be able to lock the same file, whoever made it.
        lock = FileLock(path, timeout=0, mode=EVERYBODY)
        lock.acquire()
    except Timeout:
        raise MachineInUseError(*_who(holder)) from None
    except OSError as error:
        raise AutofitError(
            f"cannot lock {path}: {error.strerror}",
            f"set {FOLDER_VARIABLE} to a folder that may be written",
        ) from error
    try:
        _write_holder(holder, study)
        yield lambda name: _write_holder(holder, name)
    finally:
        lock.release()


def lock_folder() -> Path:
    """Where the lock is kept."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    for folder in SHARED_FOLDERS:
        # Root may write anywhere, but must meet the others where they can.
        if folder.is_dir() and folder.stat().st_mode & stat.S_IWOTH:
            return folder / OWN_FOLDER
    return Path(tempfile.gettempdir()) / OWN_FOLDER


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(EVERYBODYS_FOLDER)  # the umask has taken bits away


def _write_holder(path: Path, study: str) -> None:
    """Say who holds the lock, for the message to others: not being able to is no failure."""
    text = json.dumps({"pid": os.getpid(), "study": study, "since": time.time()})
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        fd = os.open(path, flags, EVERYBODY)
        with os.fdopen(fd, "w") as file:
            file.write(text)
            if os.fstat(fd).st_uid == os.geteuid():
                os.fchmod(fd, EVERYBODY)


def _who(path: Path) -> tuple[str, str]:
    """The message and hint about the lock's holder."""
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
