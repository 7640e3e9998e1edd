"""What the system has against a path that a user gave, in words, with what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from autofit.errors import AutofitError, UsageError

# The fault of the name or place that was given: what it is, and what to do.
_OF_THE_PLACE = {
    errno.ENAMETOOLONG: ("the name is longer than the system takes", "give a shorter one"),
    errno.ENOTDIR: ("what should be a folder in it is a file", "give another path"),
    errno.EISDIR: ("it is a folder", "give the name of a file in it"),
    errno.EEXIST: ("there is something else already", "give another path"),
    errno.ELOOP: ("its links lead in a circle", "give the path of the file itself"),
    errno.EACCES: ("it may not be used", "choose another place, or ask its owner"),
    errno.EPERM: ("it may not be used", "choose another place, or ask its owner"),
    errno.EROFS: ("nothing can be written there", "choose another place"),
}
# What a user mends beside the command line.
_OF_THE_SYSTEM = {
    errno.ENOENT: ("it is not there", "it may just have been removed: run the command again"),
    errno.ENOSPC: ("the disk is full", "free some space, then run the command again"),
    errno.EDQUOT: ("your part of the disk is full", "free some space, then run the command again"),
    errno.EMFILE: ("too many files are open", "raise the limit: `ulimit -n 4096`"),
    errno.ENOMEM: ("the system has no memory left", "free some, then run the command again"),
}


def path_error(error: OSError) -> AutofitError:
    """The error that tells a user what the system refused; exit code 2 where a path is wrong."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    if error.errno == errno.ENOENT and not _is_working_folder_there():
        return UsageError("the folder that this was started in is gone", "cd to one that exists")
    if name and error.errno in _OF_THE_PLACE:
        what, hint = _OF_THE_PLACE[error.errno]
        return UsageError(f"cannot use {_shown(name)}: {what}", hint)
    what, hint = _OF_THE_SYSTEM.get(error.errno or 0, (error.strerror or str(error), ""))
    return AutofitError(f"cannot use {_shown(name)}: {what}" if name else what, hint)


def check_writable(path: Path) -> None:
    """See that a file may be written there, before any work is done for it.

    Raises:
        UsageError: it is a folder, or its folder is not there, is none or may not be written.
        OSError: the system does not take such a path.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "give the name of a file in it")
    folder = resolved(path).parent
    if not folder.is_dir():
        in_the_way = next((one for one in (path.parent, *path.parents) if one.is_file()), None)
        if in_the_way is not None:
            raise UsageError(f"{in_the_way} is a file, not a folder", "give another path")
        shown = folder if path.is_symlink() else path.parent
        raise UsageError(f"there is no folder {shown}", f"mkdir -p {shown}")
    is_replaced = path.is_file() or not path.exists()  # else written to, as a pipe
    if not _may_write(folder if is_replaced else path):
        what = f"the folder {path.parent}" if is_replaced else f"{path}"
        raise UsageError(f"{what} may not be written to", "choose another place; `-` is stdout")


def resolved(path: Path) -> Path:
    """The path with its links followed.

    Raises:
        OSError: they lead in a circle.
    """
    try:
        return path.resolve()
    except RuntimeError:  # Python 3.11 and 3.12 say so; 3.13 does not mind
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def _may_write(path: Path) -> bool:
    mode = os.W_OK | (os.X_OK if path.is_dir() else 0)
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _is_working_folder_there() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True


def _shown(name: str) -> str:
    """The path, the middle of a very long one left out."""
    most = 120
    return name if len(name) <= most else f"{name[: most // 2]}...{name[-most // 2 :]}"
