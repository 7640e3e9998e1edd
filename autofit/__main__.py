"""The entry point of `python -m autofit` and of the console script.

Ctrl-C prints no traceback, not even during the imports.
"""

import contextlib
import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130
_REPEAT_S = 0.01


def main() -> None:
    """Run the command line and exit; the exit code is 130 if Ctrl-C comes before it starts."""
    signal.signal(signal.SIGALRM, _interrupt)
    sys.unraisablehook = _repeat_lost_interrupt
    try:
        from autofit.cli.main import main as run  # noqa: PLC0415 - imports take time

        run()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            os.write(2, b"autofit: stopped\n")
        _exit_interrupted()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            _exit_interrupted()
        raise


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


def _repeat_lost_interrupt(lost: "sys.UnraisableHookArgs") -> None:
    """Interrupt again a moment later if Python drops an interrupt.

    It drops those that come while it deletes an object, as during each import.
    """
    if issubclass(lost.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _REPEAT_S)
    else:
        sys.__unraisablehook__(lost)


def _exit_interrupted() -> None:
    """Exit at once with 130.

    Python would end by a signal instead if Ctrl-C came while a class was made from text, as
    dataclasses are, or comes again while Python shuts down.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
