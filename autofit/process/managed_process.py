"""A server process and its output; autofit can wait for it and always stops it."""

from __future__ import annotations

import enum
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from autofit.errors import AutofitError
from autofit.process.bounded_log import BoundedLog
from autofit.process.secret_filter import SecretFilter
from autofit.process.supervision import PIPE_BYTES, Supervised, open_pipe

_GRACE_S = 10.0
_INTERRUPTED_GRACE_S = 1.0  # the user stops the run, and no trial is made of the launch
_PIPE_LIMIT_S = 2.0  # a pipe can stay open after the last known process is dead
_CHUNK_BYTES = 1 << 18
_LINE_BYTES = 4096  # a longer line is cut in memory, but not in the file

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) != "\t"}


class Readiness(enum.StrEnum):
    """The result of waiting for a server."""

    READY = "ready"
    EXITED = "exited"
    TIMED_OUT = "timed_out"


class ManagedProcess:
    """A program and everything that it starts, which are stopped together.

    Its output goes to a log file of limited size, and the last lines stay in memory. It always
    ends with autofit. Use it in a `with` statement, or call `stop` in `finally`.
    """

    def __init__(
        self, supervised: Supervised, output: OutputReader, log_path: Path, grace_s: float
    ) -> None:
        self.pid = supervised.pid
        self.log_path = log_path
        self._supervised = supervised
        self._output = output
        self._grace_s = grace_s
        self._is_drained = False

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log_path: Path,
        cwd: Path | None = None,
        tail_lines: int = 200,
        grace_s: float = _GRACE_S,
        secrets: Collection[str] = (),
    ) -> Self:
        """Start a program with a new log file.

        `grace_s` is the time between SIGTERM and SIGKILL at the end of `with`. `secrets` are
        texts that the log and the tail must not have.

        Raises:
            UsageError: the program does not exist, or cannot run here.
            AutofitError: the log file cannot be written, or the system failed to start it.
        """
        log = _open_log(log_path)
        read_fd, write_fd = open_pipe()
        output = OutputReader(read_fd, log, tail_lines, SecretFilter(secrets))
        try:
            supervised = Supervised(argv, env=env, cwd=cwd, stdout_fd=write_fd, stderr_fd=write_fd)
        except BaseException:
            output.close(0.0)
            raise
        finally:
            os.close(write_fd)
        return cls(supervised, output, log_path, grace_s)

    def poll(self) -> int | None:
        """Return the exit status (negative for a signal), or None while the program runs.

        After the exit, log and tail are complete.

        Raises:
            AutofitError: the log can no longer be written, because the disk is full.
        """
        status = self._supervised.poll()
        if status is not None and not self._is_drained:
            self._output.drain(_PIPE_LIMIT_S)
            self._is_drained = True
        fault = self._output.fault
        if fault is not None:
            raise AutofitError(
                f"cannot write {self.log_path}: {fault.strerror}",
                f"free space on the disk of {self.log_path.parent}, then resume the study, "
                "or choose another folder",
            )
        return status

    def tail(self) -> list[str]:
        """Return the last lines of output, as text that is safe to print."""
        return self._output.tail()

    def wait_ready(
        self, is_ready: Callable[[], bool], *, deadline_s: float, poll_s: float = 0.05
    ) -> Readiness:
        """Wait until the program is ready, has exited, or `deadline_s` have passed.

        `is_ready` is called every `poll_s` and must return within a second or so, because an
        exit is not noticed meanwhile.

        Raises:
            AutofitError: the log can no longer be written.
        """
        deadline = time.monotonic() + deadline_s
        while self.poll() is None:
            if is_ready():
                # Another server can have answered on this port while ours was dying.
                return Readiness.READY if self.poll() is None else Readiness.EXITED
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return Readiness.TIMED_OUT
            self._supervised.wait(min(poll_s, left_s))
        return Readiness.EXITED

    def wait(self, limit_s: float) -> int | None:
        """Wait for the exit status, at most `limit_s`; return None if the program still runs.

        Raises:
            AutofitError: the log can no longer be written.
        """
        self._supervised.wait(limit_s)
        return self.poll()

    def stop(self, grace_s: float | None = None) -> int:
        """End the program and everything that it started; return the exit status.

        The first call sends SIGTERM, and SIGKILL follows after the grace period.

        Raises:
            AutofitError: a process survived SIGKILL.
        """
        try:
            return self._supervised.stop(self._grace_s if grace_s is None else grace_s)
        finally:
            self._output.close(_PIPE_LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A server that computes a batch reacts to SIGTERM only after it.
        grace_s = self._grace_s
        if isinstance(exception, KeyboardInterrupt):
            grace_s = min(grace_s, _INTERRUPTED_GRACE_S)
        self.stop(grace_s)


def _open_log(log_path: Path) -> BoundedLog:
    try:
        return BoundedLog(log_path)
    except OSError as error:
        raise AutofitError(
            f"cannot write {log_path}: {error.strerror}",
            "the folder must exist and be writable; choose another folder for the study",
        ) from error


class OutputTail:
    """The last lines of a stream of bytes, bounded in number and length."""

    def __init__(self, lines: int) -> None:
        self._capacity = lines
        self._lines: deque[bytes] = deque(maxlen=lines)
        self._partial = b""

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        first, *others = data.split(b"\n")
        self._partial += first[: _LINE_BYTES - len(self._partial)]
        if others:
            self._lines.append(self._partial)
            self._lines.extend(line[:_LINE_BYTES] for line in others[:-1][-self._capacity :])
            self._partial = others[-1][:_LINE_BYTES]

    def lines(self) -> list[str]:
        """Return the lines as valid text without escape sequences and control characters."""
        partial = [self._partial] if self._partial else []
        return [_clean(line) for line in [*self._lines, *partial][-self._capacity :]]


def _clean(line: bytes) -> str:
    text = line.decode("utf-8", "replace").removesuffix("\r")
    return _ESCAPE.sub("", text).translate(_CONTROL)


class OutputReader:
    """A thread that reads a pipe, so that the program never has to wait.

    If the log file cannot be written, `fault` has the reason, and reading continues.
    """

    def __init__(
        self, pipe_fd: int, log: BoundedLog, tail_lines: int, secrets: SecretFilter
    ) -> None:
        """Start reading, and take over the descriptor and the log."""
        self.fault: OSError | None = None
        self._pipe_fd = pipe_fd
        self._log = log
        self._tail = OutputTail(tail_lines)
        self._secrets = secrets
        self._lock = threading.Lock()
        self._drained = threading.Event()
        self._is_closing = False
        os.set_blocking(pipe_fd, False)
        self._wake_fd, self._waker_fd = os.pipe()
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    def tail(self) -> list[str]:
        """Return the last lines."""
        with self._lock:
            return self._tail.lines()

    def drain(self, limit_s: float) -> None:
        """Wait until the present data in the pipe has been read, at most `limit_s`."""
        if self._thread.is_alive():
            self._drained.clear()
            self._wake()
            self._drained.wait(limit_s)

    def close(self, limit_s: float) -> None:
        """Read to the end of the pipe, at most for `limit_s`, and close everything.

        A process that has escaped can keep the pipe open forever.
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
            self._take(self._secrets.end())
        finally:
            self._drained.set()
            os.close(self._pipe_fd)
            self._log.close()

    def _read_available(self) -> bool:
        """Read at most the capacity of a pipe; return False at its end."""
        left = max(_CHUNK_BYTES, PIPE_BYTES)
        while left > 0:
            try:
                data = os.read(self._pipe_fd, _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            left -= len(data)
            self._take(self._secrets.feed(data))
        return True

    def _take(self, data: bytes) -> None:
        self._write(data)
        with self._lock:
            self._tail.feed(data)

    def _write(self, data: bytes) -> None:
        if self.fault is not None:
            return
        try:
            self._log.write(data)
        except OSError as error:  # the disk is full, or a quota reached
            self.fault = error
