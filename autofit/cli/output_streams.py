"""stdout and stderr of the command line: closed, without a reader, or with few characters."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer


def open_streams() -> ClosedStream | None:
    """Replace streams that could end a run; return the replacement of stdout if it is closed.

    Python has no stdin, stdout or stderr if it was started with a closed one (`>&-`).
    """
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - open to the end
    closed = None
    if sys.stdout is None:
        closed = ClosedStream()
        sys.stdout = _open_stream(closed)
    elif isinstance(sys.stdout, io.TextIOWrapper):
        # A file name can have any bytes, and a terminal few characters.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = _open_stream(ClosedStream() if sys.stderr is None else _MessageStream(sys.stderr))
    return closed


class ClosedStream(io.RawIOBase):
    """A replacement of a closed stream. `has_text` is true once something was written to it."""

    encoding = "utf-8"

    def __init__(self) -> None:
        super().__init__()
        # The next file that is opened must not get the number of the closed stream.
        self._descriptor = os.open(os.devnull, os.O_WRONLY)
        self.has_text = False

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Buffer, /) -> int:
        """Discard the data, and note that there was some."""
        size = memoryview(data).nbytes
        self.has_text = self.has_text or size > 0
        return size


class _MessageStream(io.RawIOBase):
    """A stream of messages, whose loss ends no run.

    After a failed write, such as to a pipe without a reader, further text is discarded. It has no
    buffer, because a signal's handler can print while the program prints.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream  # open as long as this one
        self.encoding = stream.encoding
        self._is_lost = False

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        left = memoryview(data)
        size = left.nbytes
        while left and not self._is_lost:
            try:
                left = left[os.write(self.fileno(), left) :]
            except BlockingIOError:  # another program has made the terminal non-blocking
                select.select([], [self.fileno()], [])
            except OSError:
                self._is_lost = True
        return size


def _open_stream(stream: ClosedStream | _MessageStream) -> TextIO:
    # Python opens unbuffered streams in the same way, without a buffer in between.
    raw = cast("BinaryIO", stream)
    return io.TextIOWrapper(
        raw, encoding=stream.encoding, errors="backslashreplace", write_through=True
    )


class ReaderGoneError(Exception):
    """An exception for a closed output (`| head`), which click would treat as a failure."""


@contextmanager
def detect_closed_reader() -> Iterator[None]:
    """Raise ReaderGoneError if stdout loses its reader, and RuntimeError for any other pipe."""
    try:
        yield
    except BrokenPipeError as error:
        if _has_no_reader(sys.stdout):
            raise ReaderGoneError from error
        msg = "a pipe to another program was closed"
        raise RuntimeError(msg) from error


def _has_no_reader(stream: TextIO) -> bool:
    """Return whether a stream is a pipe whose other end is closed."""
    poller = select.poll()
    poller.register(stream.fileno(), select.POLLOUT)
    return any(event & select.POLLERR for _, event in poller.poll(0))


def silence(stream: TextIO) -> None:
    """Discard what is left in a stream, so that the interpreter can flush it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
