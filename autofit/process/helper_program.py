"""Short programs that answer and end: `--help`, `--list-devices`, estimators."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autofit.process.output import open_pipe
from autofit.process.supervision import Supervised

OUTPUT_BYTES = 4 << 20
CHUNK_BYTES = 1 << 16
GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program answered; `returncode` is negative for a signal.

    Of each stream the first 4 MiB are kept; bytes that are not UTF-8 are replaced.
    """

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False
    is_truncated: bool = False


class _Stream:
    """One pipe, read without ever waiting for it."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = open_pipe()
        os.set_blocking(self.read_fd, False)
        self.is_open = True
        self.is_truncated = False
        self._data = bytearray()

    def read(self) -> None:
        """Take at most one full pipe of what is there."""
        for _ in range(16):
            try:
                data = os.read(self.read_fd, CHUNK_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.is_open = False
                return
            room = OUTPUT_BYTES - len(self._data)
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


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    cwd: Path | None = None,
    merge_stderr: bool = False,
) -> Finished:
    """Run a program to its end; it and all that it started are dead when this returns.

    With `merge_stderr` both streams come as stdout, in the order in which they were printed.
    A program that takes longer than the limit is stopped and `timed_out` is set.

    Raises:
        UsageError: there is no such program, or it cannot run here.
        AutofitError: the system refused to start it, or it survived SIGKILL.
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
            returncode = supervised.stop(GRACE_S)
        for stream in streams:
            stream.read()
        return Finished(
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
    """Read until the program exits, whoever else holds its pipes; True when it timed out."""
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
