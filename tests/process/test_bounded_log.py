"""Log files that keep the first and the last bytes of an output of any size."""

from __future__ import annotations

import os
import sys

import pytest

from autofit.process.bounded_log import HEAD_BYTES, LARGEST_BYTES, TAIL_BYTES, BoundedLog
from autofit.process.managed_process import ManagedProcess

_SCRIPT = """
import sys
chunk = bytes.fromhex({chunk!r}) * {repeats}
for stream in {streams}:
    stream.buffer.write(b"the first line\\n")
    for _ in range({count}):
        stream.buffer.write(chunk)
    stream.buffer.write(b"\\nthe last line\\n")
    stream.flush()
"""


def test_an_output_below_the_limit_is_complete(tmp_path):
    """Up to the limit the file is what the program has printed."""
    path = tmp_path / "a.log"
    log = BoundedLog(path)
    data = os.urandom(LARGEST_BYTES)
    for start in range(0, len(data), 100_000):
        log.write(data[start : start + 100_000])
    log.close()

    assert path.read_bytes() == data


def test_the_middle_of_a_long_output_is_left_out(tmp_path):
    """At any time the file has the first and latest bytes, and the size of what it lacks."""
    path = tmp_path / "a.log"
    log = BoundedLog(path)
    chunk = b"".join(b"line %06d\n" % number for number in range(10_000))
    for number in range(200):
        log.write(chunk)
        size = path.stat().st_size
        assert size <= LARGEST_BYTES + len(chunk)
        written = (number + 1) * len(chunk)
        if written > 2 * LARGEST_BYTES:
            text = path.read_bytes()
            assert text[:HEAD_BYTES] == (chunk * 50)[:HEAD_BYTES]
            assert text.endswith((chunk * 50)[-TAIL_BYTES // 2 :])
            assert b"MiB are left out" in text
    log.close()


@pytest.mark.parametrize("streams", ["[sys.stdout]", "[sys.stderr]", "[sys.stdout, sys.stderr]"])
@pytest.mark.parametrize("chunk", [b"x", b"\n", b"\0", b"\x1b[31m", b"\xff", b"line\r\n"])
def test_every_program_has_a_log_of_limited_size(streams, chunk, tmp_path):
    """Lines of any length and any bytes on either stream leave the first and last lines."""
    script = _SCRIPT.format(
        chunk=chunk.hex(), repeats=(1 << 20) // len(chunk), count=20, streams=streams
    )
    path = tmp_path / "a.log"
    argv = [sys.executable, "-c", script]
    with ManagedProcess.start(argv, env={}, log_path=path) as process:
        assert process.wait(50) == 0
        assert process.tail()[-1] == "the last line"

    text = path.read_bytes()
    assert len(text) <= LARGEST_BYTES + (1 << 20)
    assert text.startswith(b"the first line\n")
    assert text.endswith(b"\nthe last line\n")


def test_a_pipe_in_place_of_the_log_is_an_error(tmp_path):
    """A program is not started if its log cannot be a file."""
    os.mkfifo(tmp_path / "a.log")
    with pytest.raises(OSError, match=r"a\.log"):
        BoundedLog(tmp_path / "a.log")
