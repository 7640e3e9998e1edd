"""Ending a run that launches servers: the first Ctrl-C after the stage under way."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from autofit.errors import Interrupted
from autofit.session.events import Listener, Notice
from autofit.session.runner import resume_hint
from autofit.study.study_folder import Study


@dataclass(slots=True)
class Stopping:
    """Counts the user's Ctrl-C."""

    _count: int = 0

    def is_asked(self) -> bool:
        """Whether the run is to end after the stage under way."""
        return self._count > 0

    @contextmanager
    def watched(self, study: Study, listener: Listener) -> Iterator[None]:
        """The first Ctrl-C ends the run after the stage under way, the second at once.

        Where SIGINT is ignored, as by a script's shell for what it starts with `&`, it stays so.

        Raises:
            Interrupted: the user stopped the run, by Ctrl-C or SIGTERM; says how to go on.
        """

        def stop(number: int, frame: FrameType | None) -> None:
            del number, frame
            self._count += 1
            if self._count > 1:
                raise KeyboardInterrupt
            listener(
                Notice(
                    f"stopping after this stage; {resume_hint(study)}; Ctrl-C again stops at once"
                )
            )

        before = signal.getsignal(signal.SIGINT)
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, stop)
        try:
            yield
        except KeyboardInterrupt as error:
            raise Interrupted("stopped", resume_hint(study)) from error
        finally:
            signal.signal(signal.SIGINT, before)
