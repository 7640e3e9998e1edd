"""A tune as it goes on, told on stderr: plain lines for a log, a live view on a terminal."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autofit.output.live.live_state import LiveState
from autofit.output.live.live_view import draw
from autofit.output.live.memory_bar import MemoryBars
from autofit.output.text.event_line import event_line, overrun_line
from autofit.session.events import (
    Event,
    Incumbent,
    LaunchEnded,
    LaunchStarted,
    MemoryRead,
    PhaseStarted,
    RoundEnded,
)
from autofit.text_format import duration
from autofit.trial.workload import Workload

# A log is not a terminal: its lines need no wrapping.
_LOG_COLUMNS = 10_000


# Rich fills the last column of a table with blanks.
_TRAILING = re.compile(r"[ \t]+$", re.MULTILINE)


class _PipedConsole(Console):
    """A console that leaves it to the caller what a closed pipe means; rich would exit.

    In a file or a log no line ends in blanks.
    """

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as rich has it
        """Print as rich does."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(_TRAILING.sub("", captured.get()))

    def on_broken_pipe(self) -> None:
        """Let the error pass."""
        raise  # noqa: PLE0704 - rich calls this where it has caught it


def make_console(stream: TextIO) -> Console:
    """A rich console that wraps lines on a terminal only."""
    is_terminal = stream.isatty()
    return _PipedConsole(
        file=stream,
        width=None if is_terminal else _LOG_COLUMNS,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=not is_terminal,
    )


class TuneConsole:
    """Listens to a tune and shows it; one line stays for each launch.

    `budget_s` is the time the tune may take, None without a limit; `limits_mib` what each
    device may hold; `clock` gives seconds.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        budget_s: float | None = None,
        limits_mib: Mapping[str, float] | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workload = workload
        self._budget_s = budget_s
        self._clock = clock
        self._began_s = clock()
        self._console = make_console(stream or sys.stderr)
        self._state = LiveState()
        # Apart from the rest, for it is told from a thread of its own.
        self._memory = MemoryBars(limits_mib or {})
        self._overrun_phase = ""
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self.view,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, event: Event) -> None:
        """Take in an event, and say it where it is worth a line."""
        if isinstance(event, MemoryRead):
            self._memory = self._memory.read(event.reading)
            return
        if isinstance(event, LaunchStarted):
            self._memory = self._memory.begun()
            self._tell_overrun(event)
        self._state = self._state.after(event, self._clock())
        self._print(event_line(event, self._workload, self._state.numbers), _style(event))

    def view(self) -> RenderableType:
        """The live view as it is now."""
        return Group(
            *draw(
                self._state,
                self._memory,
                now_s=self._clock(),
                time_words=self._time_words(),
                columns=self._console.width,
            )
        )

    @property
    def _spent_s(self) -> float:
        return self._clock() - self._began_s

    def _time_words(self) -> str:
        if self._budget_s is None:
            return f"{duration(self._spent_s)} so far"
        left_s = self._budget_s - self._spent_s
        return f"{duration(left_s)} left" if left_s >= 0 else f"{duration(-left_s)} over budget"

    def _tell_overrun(self, event: LaunchStarted) -> None:
        """Say once for each phase that it goes on although the budget is spent."""
        if self._budget_s is None or self._spent_s <= self._budget_s:
            return
        phase = event.purpose.phase
        if self._overrun_phase != phase:
            self._overrun_phase = phase
            line = overrun_line(phase, self._budget_s, self._spent_s)
            self._print(f"notice: {line}", "yellow")

    def _print(self, line: str, style: str) -> None:
        if line:
            self._console.print(Text(line, style=style))


def _style(event: Event) -> str:
    if isinstance(event, LaunchEnded) and not event.trial.is_completed:
        return "yellow"
    if isinstance(event, Incumbent | RoundEnded):
        return "green"
    return "bold" if isinstance(event, PhaseStarted) else ""
