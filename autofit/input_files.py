"""Files from outside: only regular ones of a limited size are read, and JSON of a limited depth.

A path can lead to anything: a pipe without a writer waits forever, and a device never ends.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from autofit.units import MIB

# A trial with the memory readings of a launch of many hours has a few MiB.
LARGEST_JSON_BYTES = 16 * MIB
_DEEPEST = 64
_LARGEST_INTEGER = 1 << 64


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: it cannot be opened, or is something else; `strerror` says what.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name has a NUL character", str(path))
    # The first look prevents that a device is opened, the second that another file is read.
    require_regular(path, os.stat(path))  # noqa: PTH116 - a path of raw bytes is possible
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        require_regular(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_input(path: Path, largest_bytes: int = LARGEST_JSON_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it cannot be read, is not a regular file or too large; `strerror` says which.
    """
    with open_regular(path) as file:
        return read_stream(file, largest_bytes)


def read_stream(file: BinaryIO, largest_bytes: int = LARGEST_JSON_BYTES) -> bytes:
    """Return the content of an open file or pipe.

    Raises:
        OSError: it cannot be read, or is too large; `strerror` says which.
    """
    data = file.read(largest_bytes + 1)
    if len(data) > largest_bytes:
        raise OSError(errno.EINVAL, f"it has more than {largest_bytes / MIB:g} MiB")
    return data


def read_json(path: Path, largest_bytes: int = LARGEST_JSON_BYTES) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON document in a regular file.

    Raises:
        OSError: as `read_input`.
        ValueError: it is no JSON, or as `parse_json`.
    """
    return parse_json(read_input(path, largest_bytes))


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - JSON can be anything
    """Return the data of a JSON document: finite numbers of at most 64 bits, valid texts.

    Raises:
        ValueError: it is no JSON, nested too deeply, or has another number.
    """
    try:
        data = json.loads(
            text.decode("utf-8-sig") if isinstance(text, bytes) else text,
            parse_constant=_refuse_number,
            parse_float=_parse_float,
            parse_int=_parse_integer,
        )
    except RecursionError as error:
        raise _too_deep() from error
    if b"\\ud" in (text if isinstance(text, bytes) else text.encode("utf-8", "replace")).lower():
        # Paths of raw bytes have surrogates, but no file and no terminal takes other ones.
        json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogateescape")
    level = [data]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _content(outer)]
        if not level:
            return data
    raise _too_deep()


def _content(outer: object) -> list[Any]:
    """Return the lists and objects in a list or object."""
    inner = outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()
    return [one for one in inner if isinstance(one, dict | list)]


def _too_deep() -> ValueError:
    return ValueError(f"nested more than {_DEEPEST} levels deep")


def _parse_float(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


def _parse_integer(text: str) -> int:
    # Python needs long for thousands of digits.
    number = int(text) if len(text) <= len(str(_LARGEST_INTEGER)) + 1 else _LARGEST_INTEGER
    return number if abs(number) < _LARGEST_INTEGER else _refuse_number(text)


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:20]} is not allowed")


def require_regular(path: Path, status: os.stat_result) -> None:
    """Refuse what is not a regular file.

    Raises:
        OSError: `strerror` says what it is.
    """
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_describe(mode)}, not a regular file", str(path))


def _describe(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"
