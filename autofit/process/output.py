"""What a program prints: everything into a log file, the last lines in memory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import threading
from collections import deque

CHUNK_BYTES = 1 << 18
PIPE_BYTES = 1 << 20
LINE_BYTES = 4096  # a longer line is cut in memory, never in the file

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) != "\t"}


class Tail:
    """The last lines of a stream of bytes, bounded in number and length."""

    def __init__(self, lines: int) -> None:
        self._lines: deque[bytes] = deque(maxlen=lines)
        self._partial = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        first, *others = data.split(b"\n")
        self._partial += first[: LINE_BYTES - len(self._partial)]
        if others:
            self._lines.append(self._partial)
            self._lines.extend(line[:LINE_BYTES] for line in others[:-1][-self.capacity :])
            self._partial = others[-1][:LINE_BYTES]

    @property
    def capacity(self) -> int:
        """How many lines are kept."""
        return self._lines.maxlen or 0

    def lines(self) -> list[str]:
        """The lines as text that is safe to show: no escapes, nothing but UTF-8."""
        partial = [self._partial] if self._partial else []
        return [_shown(line) for line in [*self._lines, *partial][-self.capacity :]]


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "replace").removesuffix("\r")
    return _ESCAPE.sub("", text).translate(_CONTROL)


class Output:
    """Reads a pipe in a thread of its own, so that the program behind it never has to wait.

    A log file that cannot be written is no reason to stop reading: `fault` then says why, and
    the lines in memory go on.
    """

    def __init__(self, pipe_fd: int, log_fd: int, tail_lines: int) -> None:
        """Start reading; both descriptors now belong to this object."""
        self.fault: OSError | None = None
        self._pipe_fd = pipe_fd
        self._log_fd = log_fd
        self._tail = Tail(tail_lines)
        self._lock = threading.Lock()
        self._drained = threading.Event()
        self._is_closing = False
        os.set_blocking(pipe_fd, False)
        self._wake_fd, self._waker_fd = os.pipe()
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    def tail(self) -> list[str]:
        """The last lines read."""
        with self._lock:
            return self._tail.lines()

    def drain(self, limit_s: float) -> None:
        """Wait until all that the pipe holds now has been read, at most the limit."""
        if self._thread.is_alive():
            self._drained.clear()
            self._wake()
            self._drained.wait(limit_s)

    def close(self, limit_s: float) -> None:
        """Read to the end of the pipe, or as far as the limit allows, and close everything.

        A process that escaped may hold the pipe open for ever.
        """
        if self._is_closing:
            return
        self._thread.join(limit_s)
        self._is_closing = True
        self._wake()
        self._thread.join()
        os.close(self._waker_fd)
        os.close(self._wake_fd)

    def _wake(self) -> None:
        os.write(self._waker_fd, b".")

    def _read(self) -> None:
        poller = select.poll()
        poller.register(self._pipe_fd, select.POLLIN)
        poller.register(self._wake_fd, select.POLLIN)
        try:
            is_open = True
            while is_open and not self._is_closing:
                ready = {fd for fd, _ in poller.poll()}
                is_open = self._read_available()
                if self._wake_fd in ready:
                    os.read(self._wake_fd, 64)
                    self._drained.set()
        finally:
            self._drained.set()
            os.close(self._pipe_fd)
            os.close(self._log_fd)

    def _read_available(self) -> bool:
        """Read what a full pipe can hold, no more; False at the end of the pipe."""
        left = max(CHUNK_BYTES, PIPE_BYTES)
        while left > 0:
            try:
                data = os.read(self._pipe_fd, CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            left -= len(data)
            self._log(data)
            with self._lock:
                self._tail.feed(data)
        return True

    def _log(self, data: bytes) -> None:
        if self.fault is not None:
            return
        try:
            while data:
                data = data[os.write(self._log_fd, data) :]
        except OSError as error:  # the disk is full, or a quota reached
            self.fault = error


def open_pipe() -> tuple[int, int]:
    """A pipe, as (read end, write end), that holds much where the system allows it.

    A server that prints while this process is busy then does not have to wait.
    """
    read_fd, write_fd = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # a user's share of pipe memory is limited
            fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read_fd, write_fd
