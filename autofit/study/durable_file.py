"""Files that survive a kill or a power cut, and errors of the disk."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit.errors import AutofitError, UsageError
from autofit.input_files import parse_json, read_input, require_regular
from autofit.units import MIB

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_A_FOLDER = {errno.EEXIST, errno.ENOTDIR, errno.ELOOP}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}


def write_durably(path: Path, text: str, *, like: Path | None = None) -> None:
    """Replace a file atomically: at any moment either the old or the new one is complete.

    Surrogates in the text, from a path of raw bytes, are written as those bytes. The new file has
    the permissions of the old one, or of the file `like`.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE((like or path).stat().st_mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder durable, if the system can sync folders."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add one record to a file of JSON lines; an incomplete last line is closed first.

    Raises:
        OSError: the file cannot be written.
    """
    line = (json.dumps(record) + "\n").encode()
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o644)
    try:
        require_regular(path, os.fstat(descriptor))
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        while line:
            line = line[os.write(descriptor, line) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the records of a file of JSON lines, and the number of unreadable lines.

    Raises:
        OSError: the file exists but cannot be read.
    """
    try:
        text = read_input(path).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return [], 0
    records: list[dict[str, Any]] = []
    faults = 0
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            faults += 1
    return records, faults


def storage_error(error: OSError, path: Path) -> AutofitError:
    """Return the error that ends a run after a file could not be written or read."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return AutofitError(
            f"no room to write {path}: {reason}",
            "free some disk space, then continue with `--resume`; finished launches are saved",
        )
    if error.errno in _FORBIDDEN:
        return AutofitError(
            f"cannot write {path}: {reason}", "choose a writable folder with `--study DIR`"
        )
    failed = Path(error.filename) if isinstance(error.filename, str) else path
    in_the_way = next((one for one in (failed, *failed.parents) if _is_in_the_way(one)), None)
    if error.errno in _NOT_A_FOLDER and in_the_way is not None:
        below = f"cannot use {path}: " * (in_the_way != path)
        what = "a file, not a folder" if in_the_way.exists() else "a link that leads nowhere"
        return UsageError(
            f"{below}{in_the_way} is {what}", "choose another folder with `--study DIR`"
        )
    return AutofitError(f"cannot use {path}: {reason}", "choose another folder with `--study DIR`")


def _is_in_the_way(path: Path) -> bool:
    """Return whether something other than a folder has a path."""
    return os.path.lexists(path) and not path.is_dir()


def check_free_disk(folder: Path, needed_mib: float) -> None:
    """Check that the disk has enough room for the logs of a study.

    Raises:
        AutofitError: less than `needed_mib` is free at the nearest existing parent.
    """
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free_mib = shutil.disk_usage(existing).free / MIB
    if free_mib < needed_mib:
        raise AutofitError(
            f"only {free_mib:.0f} MiB of disk free at {existing}, "
            f"a study may need {needed_mib:.0f} MiB",
            "free some space, or choose another disk with `--study DIR`",
        )
