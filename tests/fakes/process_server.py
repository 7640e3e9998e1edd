"""A program with bad manners, for tests of starting and stopping.

Writes `ROLE PID` to --report when it is ready to be stopped, and `ROLE PID term N` when its
N-th SIGTERM arrives.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    """Fork as asked, then behave as asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--term-takes-s", type=float, default=0.0)
    parser.add_argument("--exit-after-s", type=float, default=60.0)
    parser.add_argument("--status", type=int, default=0)
    parser.add_argument("--fork", choices=["group", "session", "daemon"], action="append")
    parser.add_argument("--say", default="")
    parser.add_argument("--spew-bytes", type=int, default=0)
    parser.add_argument("--garbage", action="store_true")
    options = parser.parse_args()

    role = "server"
    for kind in options.fork or []:
        if os.fork() == 0:
            role = kind
            if kind != "group":
                os.setsid()
            if kind == "daemon" and os.fork() != 0:
                os._exit(0)
            break
    obey(options, role)


def obey(options: argparse.Namespace, role: str) -> None:
    """Print the request, and run until a signal to stop."""
    seen = 0
    stop_at = time.monotonic() + options.exit_after_s

    def on_term(*_: object) -> None:
        nonlocal seen, stop_at
        seen += 1
        report(options.report, f"{role} {os.getpid()} term {seen}")
        if not options.ignore_term:
            stop_at = time.monotonic() + options.term_takes_s

    signal.signal(signal.SIGTERM, on_term)
    report(options.report, f"{role} {os.getpid()}")
    if role == "server":
        speak(options)
    while (left_s := stop_at - time.monotonic()) > 0:
        time.sleep(min(left_s, 0.02))
    sys.exit(options.status)


def report(path: Path, line: str) -> None:
    """Add a line that a test waits for."""
    with path.open("a") as file:
        file.write(line + "\n")


def speak(options: argparse.Namespace) -> None:
    """Print what was asked."""
    if options.say:
        print(options.say, flush=True)
        print("to stderr: " + options.say, file=sys.stderr, flush=True)
    if options.garbage:
        sys.stdout.buffer.write(bytes(range(256)) * 20 + b"\n\xff\xfe\xf0\x28 end\n")
        sys.stdout.buffer.flush()
    line = b"0123456789" * 10 + b"\n"
    for _ in range(options.spew_bytes // len(line)):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
