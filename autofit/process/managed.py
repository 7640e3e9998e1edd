"""A server under watch: started, waited for, and always stopped."""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from autofit.errors import AutofitError
from autofit.process.output import Output, open_pipe
from autofit.process.supervision import Supervised

GRACE_S = 10.0
HURRY_S = 1.0  # the grace where the user does not wait any longer
PIPE_LIMIT_S = 2.0  # how long a pipe may stay open after the last process known is dead


class Ready(enum.StrEnum):
    """How waiting for a server ended."""

    READY = "ready"
    EXITED = "exited"
    TIMED_OUT = "timed_out"


class ManagedProcess:
    """A program and all that it starts, as one thing that is stopped together.

    Its output goes to a log file, and the last lines stay in memory. It ends with autofit,
    whatever ends autofit. Use it in a `with` statement, or call `stop` in `finally`.
    """

    def __init__(
        self, supervised: Supervised, output: Output, log_path: Path, grace_s: float
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
        grace_s: float = GRACE_S,
    ) -> Self:
        """Start a program, its output going to a new file.

        `grace_s` is what `with` grants between SIGTERM and SIGKILL.

        Raises:
            UsageError: there is no such program, or it cannot run here.
            AutofitError: the log file cannot be written, or the system refused.
        """
        log_fd = _open_log(log_path)
        read_fd, write_fd = open_pipe()
        output = Output(read_fd, log_fd, tail_lines)
        try:
            supervised = Supervised(argv, env=env, cwd=cwd, stdout_fd=write_fd, stderr_fd=write_fd)
        except BaseException:
            output.close(0.0)
            raise
        finally:
            os.close(write_fd)
        return cls(supervised, output, log_path, grace_s)

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while the program runs.

        Once it is not None, log and tail are complete.

        Raises:
            AutofitError: the log can no longer be written, since the disk is full.
        """
        status = self._poll()
        self._check_log()
        return status

    def tail(self) -> list[str]:
        """The last lines of output: bounded, valid text, safe to show."""
        return self._output.tail()

    def wait_ready(
        self, is_ready: Callable[[], bool], *, deadline_s: float, poll_s: float = 0.05
    ) -> Ready:
        """Wait until the program is ready, has exited, or the deadline (from now) has passed.

        `is_ready` is asked every `poll_s`, and must itself answer within a second or so: an
        exit is seen at once while waiting, but not while it is being asked.

        Raises:
            AutofitError: the log can no longer be written.
        """
        deadline = time.monotonic() + deadline_s
        while self.poll() is None:
            if is_ready():
                # Another server may have answered on this port while ours was dying.
                return Ready.READY if self.poll() is None else Ready.EXITED
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return Ready.TIMED_OUT
            self._supervised.wait(min(poll_s, left_s))
        return Ready.EXITED

    def wait(self, limit_s: float) -> int | None:
        """The exit status, waited for at most the limit; None when it still runs.

        Raises:
            AutofitError: the log can no longer be written.
        """
        self._supervised.wait(limit_s)
        return self.poll()

    def stop(self, grace_s: float | None = None) -> int:
        """End the program and all that it started; returns the exit status.

        SIGTERM goes out once however often this is called; SIGKILL follows after the grace.
        Nothing happens when it has been stopped before.

        Raises:
            AutofitError: something survived SIGKILL.
        """
        try:
            return self._supervised.stop(self._grace_s if grace_s is None else grace_s)
        finally:
            self._output.close(PIPE_LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A server that computes a batch looks for SIGTERM only after it.
        is_hurried = isinstance(exception, KeyboardInterrupt)
        self.stop(min(self._grace_s, HURRY_S) if is_hurried else None)

    def _poll(self) -> int | None:
        status = self._supervised.poll()
        if status is not None and not self._is_drained:
            self._output.drain(PIPE_LIMIT_S)
            self._is_drained = True
        return status

    def _check_log(self) -> None:
        fault = self._output.fault
        if fault is not None:
            raise AutofitError(
                f"cannot write {self.log_path}: {fault.strerror}",
                f"free space on the disk of {self.log_path.parent}, then resume the study, "
                "or put it elsewhere",
            )


def _open_log(log_path: Path) -> int:
    try:
        return os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    except OSError as error:
        raise AutofitError(
            f"cannot write {log_path}: {error.strerror}",
            "the folder must exist and be writable; choose another place for the study",
        ) from error
