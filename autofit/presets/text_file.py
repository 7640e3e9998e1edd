"""A file's text, whoever wrote it and on whatever system; what is no text is refused."""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path

from autofit.errors import UsageError

_LARGEST_BYTES = 1 << 18
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_HINT = "give a file that tells how a server is started, or the launch command, quoted"


def read_text_file(path: Path) -> str:
    """The text with line ends as on Unix and without a byte order mark.

    Bytes that are no UTF-8 are kept as Python keeps them in file names.

    Raises:
        UsageError: it cannot be read, is no regular file, too large, binary or empty.
    """
    try:
        # Opening a pipe would wait for who writes it.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is not a regular file", _HINT)
        if status.st_size > _LARGEST_BYTES:
            what = f"{status.st_size / 1024:,.0f} KiB are too much for a launch command"
            raise UsageError(f"{path}: {what}", _HINT)
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", _HINT) from error
    if data.startswith(b"GGUF"):
        raise UsageError(f"{path} is a model, no launch command", _HINT)
    text = _decoded(data, path)
    if not text.strip():
        raise UsageError(f"{path} is empty", _HINT)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decoded(data: bytes, path: Path) -> str:
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)
    try:
        text = data.decode(encoding) if encoding else os.fsdecode(data)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not valid text: {error}", _HINT) from error
    if "\0" in text:
        raise UsageError(f"{path} is a binary file", _HINT)
    return text
