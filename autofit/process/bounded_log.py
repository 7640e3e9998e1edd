"""A log file of limited size: the first and the last bytes of what a program prints."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from autofit.units import MIB

# What a runtime prints at its start and at its end decides the diagnosis. A usual log has 100 KiB.
HEAD_BYTES = 2 * MIB
TAIL_BYTES = 2 * MIB
# The end is moved only once it has grown to twice its size, so that writing stays quick.
LARGEST_BYTES = HEAD_BYTES + 2 * TAIL_BYTES
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NONBLOCK


class BoundedLog:
    """A new log file, without the middle of a long output; the file is complete at any time."""

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            OSError: it cannot be written, or is a pipe.
        """
        self._descriptor = os.open(path, _FLAGS, 0o644)
        if stat.S_ISFIFO(os.fstat(self._descriptor).st_mode):  # it may have no reader
            os.close(self._descriptor)
            raise OSError(errno.EINVAL, "it is a pipe, not a file", str(path))
        self._size = 0
        self._left_out = 0

    def write(self, data: bytes) -> None:
        """Add bytes.

        Raises:
            OSError: the disk is full, or a quota reached.
        """
        while data:
            count = os.write(self._descriptor, data)
            self._size += count
            data = data[count:]
        if self._size > LARGEST_BYTES:
            self._drop_middle()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _drop_middle(self) -> None:
        tail = os.pread(self._descriptor, TAIL_BYTES, self._size - TAIL_BYTES)
        self._left_out += self._size - HEAD_BYTES - len(tail)
        os.ftruncate(self._descriptor, HEAD_BYTES)
        self._size = HEAD_BYTES
        self.write(f"\n[about {self._left_out / MIB:.0f} MiB are left out]\n".encode() + tail)
