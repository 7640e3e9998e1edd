"""Runs of short programs: `--help`, `--list-devices`, planners."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autofit.process.supervision import Supervised, open_pipe

_OUTPUT_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 16
_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The result of a program; `returncode` is negative for a signal.

    Each stream has at most its first 4 MiB. Bytes that are not UTF-8 are replaced.
    """

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False
    is_truncated: bool = False


class _Stream:
    """A pipe that is read without waiting."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = open_pipe()
        os.set_blocking(self.read_fd, False)
        self.is_open = True
        self.is_truncated = False
        self._data = bytearray()

    def read(self) -> None:
        """Read the available data, at most the capacity of a pipe."""
        for _ in range(16):
            try:
                data = os.read(self.read_fd, _CHUNK_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.is_open = False
                return
            room = _OUTPUT_BYTES - len(self._data)
            self._data += data[:room]
            self.is_truncated |= len(data) > room

    def text(self) -> str:
        return self._data.decode("utf-8", "replace")

    def close_writer(self) -> None:
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def close(self) -> None:
        self.close_writer()
        os.close(self.read_fd)


def run_to_end(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    cwd: Path | None = None,
    merge_stderr: bool = False,
) -> ProgramResult:
    """Run a program to its end; afterwards everything that it started is dead.

    With `merge_stderr` both streams are in stdout, in the order in which they were printed. A
    program that exceeds the limit is stopped, and `timed_out` is set.

    Raises:
        UsageError: the program does not exist, or cannot run here.
        AutofitError: the system failed to start it, or it survived SIGKILL.
    """
    stdout = _Stream()
    streams = [stdout] if merge_stderr else [stdout, _Stream()]
    try:
        supervised = Supervised(
            argv, env=env, cwd=cwd, stdout_fd=stdout.write_fd, stderr_fd=streams[-1].write_fd
        )
        try:
            for stream in streams:
                stream.close_writer()
            timed_out = _read_until_exit(supervised, streams, timeout_s)
        finally:
            returncode = supervised.stop(_GRACE_S)
        for stream in streams:
            stream.read()
        return ProgramResult(
            returncode,
            stdout.text(),
            "" if merge_stderr else streams[-1].text(),
            timed_out,
            any(stream.is_truncated for stream in streams),
        )
    finally:
        for stream in streams:
            stream.close()


def _read_until_exit(supervised: Supervised, streams: list[_Stream], timeout_s: float) -> bool:
    """Read until the program exits, and return whether it timed out.

    Other processes can keep its pipes open after its exit.
    """
    deadline = time.monotonic() + timeout_s
    poller = select.poll()
    poller.register(supervised.fileno(), select.POLLIN)
    for stream in streams:
        poller.register(stream.read_fd, select.POLLIN)
    while supervised.poll() is None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return True
        poller.poll(left_s * 1000)
        for stream in streams:
            was_open = stream.is_open
            stream.read()
            if was_open and not stream.is_open:
                poller.unregister(stream.read_fd)
    return False
