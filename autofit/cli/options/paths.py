"""Output paths from the user: checks, writing, and error messages."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import click

from autofit.errors import AutofitError, UsageError

# Faults of the path that the user gave, each with a hint.
_PATH_FAULTS = {
    errno.ENAMETOOLONG: ("the name is too long for the system", "give a shorter name"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "give another path"),
    errno.EISDIR: ("it is a folder", "give the name of a file in that folder"),
    errno.EEXIST: ("something else exists there", "give another path"),
    errno.ELOOP: ("the links of the path lead in a circle", "give the path of the file itself"),
    errno.EACCES: ("no permission", "choose another place, or ask the owner of this place"),
    errno.EPERM: ("no permission", "choose another place, or ask the owner of this place"),
    errno.EROFS: ("the file system is read-only", "choose another place"),
}
# Faults that the user must repair outside of autofit.
_SYSTEM_FAULTS = {
    errno.ENOENT: ("it does not exist", "run again: the file may just have been removed"),
    errno.ENOSPC: ("the disk is full", "free some space, then run the command again"),
    errno.EDQUOT: ("your disk quota is used up", "free some space, then run the command again"),
    errno.EMFILE: ("too many files are open", "raise the limit: `ulimit -n 4096`"),
    errno.ENOMEM: ("the system has no memory left", "free some memory, then run again"),
}
_EXECUTABLE = 0o111
_LONGEST_SHOWN = 120


def check_target(target: str) -> None:
    """Refuse a target that cannot be written, before any work. `-` is stdout.

    Raises:
        UsageError: the target cannot be written.
    """
    if target != "-":
        check_writable(Path(target).expanduser())


def deliver(text: str, target: str, *, is_program: bool = False, like: Path | None = None) -> None:
    """Write text to stdout if the target is `-`, else replace the content of a file.

    Paths in the text that are not valid Unicode are written as their original bytes. The new
    file gets the read permissions of the file `like`, if that is given.

    Raises:
        UsageError: the user has no permission to write there.
        AutofitError: the system could not write.
    """
    from autofit.study.durable_file import write_durably  # noqa: PLC0415 - --help is quick

    if target == "-":
        click.echo(os.fsencode(text), nl=not text.endswith("\n"))
        return
    check_target(target)
    path = Path(target).expanduser()
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(os.fsencode(text))  # a pipe or device must not be replaced
            return
        place = _resolve(path)
        write_durably(place, text, like=like)
        if is_program:
            place.chmod(place.stat().st_mode | _EXECUTABLE)
    except OSError as error:
        raise AutofitError(
            f"cannot write {path}: {error.strerror or error}",
            "choose a place with free space and write permission, or use `-` for stdout",
        ) from error


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before any work.

    Raises:
        UsageError: it is a folder, or its folder does not exist or is not writable.
        OSError: the system does not accept such a path.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "give the name of a file in that folder")
    folder = _resolve(path).parent
    if not folder.is_dir():
        file = next((part for part in (path.parent, *path.parents) if part.is_file()), None)
        if file is not None:
            raise UsageError(f"{file} is a file, not a folder", "give another path")
        shown = folder if path.is_symlink() else path.parent
        raise UsageError(f"there is no folder {shown}", f"mkdir -p {shown}")
    is_replaced = path.is_file() or not path.exists()  # a pipe or device is written to
    if not _may_write(folder if is_replaced else path):
        what = f"the folder {path.parent}" if is_replaced else f"{path}"
        raise UsageError(
            f"no permission to write to {what}", "choose another place, or use `-` for stdout"
        )


def describe_path_error(error: OSError) -> AutofitError:
    """Convert a system error to an error for users. A wrong path from the user has exit code 2."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    if error.errno == errno.ENOENT and not _has_working_folder():
        return UsageError(
            "the working directory does not exist any more", "change to a folder that exists"
        )
    if name and error.errno in _PATH_FAULTS:
        fault, hint = _PATH_FAULTS[error.errno]
        return UsageError(f"cannot use {_shorten(name)}: {fault}", hint)
    fault, hint = _SYSTEM_FAULTS.get(error.errno or 0, (error.strerror or str(error), ""))
    return AutofitError(f"cannot use {_shorten(name)}: {fault}" if name else fault, hint)


def _resolve(path: Path) -> Path:
    """Follow the links of a path.

    Raises:
        OSError: the links lead in a circle.
    """
    try:
        return path.resolve()
    except RuntimeError:  # Python 3.11 and 3.12; later ones return the path
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def _may_write(path: Path) -> bool:
    mode = os.W_OK | (os.X_OK if path.is_dir() else 0)
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _has_working_folder() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True


def _shorten(name: str) -> str:
    """Return a path, or a very long one without its middle."""
    half = _LONGEST_SHOWN // 2
    return name if len(name) <= _LONGEST_SHOWN else f"{name[:half]}...{name[-half:]}"
