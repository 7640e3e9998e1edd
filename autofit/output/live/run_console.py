"""The display of a run on stderr: a line for each launch, and below them the live view.

The view is a few lines, none wider than the terminal. It needs no colour to be read.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Self, TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from autofit.output.live.live_state import LEGEND, LiveState, MemoryBars
from autofit.output.text.console import make_console
from autofit.output.text.event_line import (
    COLUMNS,
    brief_line,
    event_line,
    incumbent_line,
    launch_line,
    overrun_line,
    round_line,
    settings_text,
)
from autofit.session.events import (
    Event,
    Incumbent,
    LaunchEnded,
    LaunchStarted,
    MemoryRead,
    PhaseStarted,
    RoundEnded,
)
from autofit.text_format import duration, one_line
from autofit.trial.metric import Metric
from autofit.trial.purpose import PHASES
from autofit.trial.workload import Workload

# How many layouts and KV types have a strip: those that changed last.
_SHOWN_STRIPS = 2
# How many devices have a bar, so that the view has fewer than 20 lines.
_SHOWN_BARS = 8


class RunConsole:
    """A listener that shows a run: one line stays for each launch.

    `metric` is the objective. `budget_s` is the time limit of the run, or None. `limits_mib` has
    the limits of devices. `clock` returns seconds. `refresh_s` is the time between two views. A
    `verbose` console prints all that is known about each event.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        metric: Metric = "request_s",
        budget_s: float | None = None,
        limits_mib: Mapping[str, float] | None = None,
        verbose: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        refresh_s: float = 0.25,
    ) -> None:
        self._workload = workload
        self._metric = metric
        self._verbose = verbose
        self._budget_s = budget_s
        self._clock = clock
        self._began_s = clock()
        self._console = make_console(stream or sys.stderr)
        self._state = LiveState()
        # Apart from the state, because a thread of its own reports it.
        self._memory = MemoryBars(limits_mib or {})
        self._overrun_phase = ""
        self._live: Live | None = None
        # Rich's own thread can draw while a line is printed, which leaves parts of old views.
        self._lock = threading.RLock()
        self._refresh_s = refresh_s
        self._is_ended = threading.Event()
        self._refresher = threading.Thread(target=self._refresh_until_end, daemon=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self.view,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)
            self._refresher.start()
        return self

    def _refresh_until_end(self) -> None:
        while not self._is_ended.wait(self._refresh_s):
            with self._lock:
                if self._live is not None:
                    self._live.refresh()

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._is_ended.set()
            with self._lock:
                self._live.stop()
                self._live = None

    def __call__(self, event: Event) -> None:
        """Show an event, and log it if it has a line."""
        if isinstance(event, MemoryRead):
            self._memory = self._memory.read(event.reading)
            return
        if isinstance(event, LaunchStarted):
            self._memory = self._memory.restarted()
            self._note_overrun(event)
        before, self._state = self._state, self._state.after(event, self._clock())
        self._print(self._line(event, before), _style(event))

    def _line(self, event: Event, before: LiveState) -> str:
        """Return the line of an event, which is compared with the state before it."""
        if self._verbose:
            return event_line(event, self._workload, self._state.numbers)
        if isinstance(event, LaunchEnded):
            return launch_line(
                event.trial,
                self._workload,
                self._metric,
                best=before.reference,
                first=before.first,
                columns=min(COLUMNS, self._console.width),
            )
        if isinstance(event, PhaseStarted) and event.phase == before.phase:
            return ""
        return brief_line(event, self._state.numbers)

    def view(self) -> RenderableType:
        """Return the live view at this moment."""
        return Group(
            *_draw(
                self._state,
                self._memory,
                now_s=self._clock(),
                time_text=self._time_text(),
                columns=self._console.width,
            )
        )

    @property
    def _spent_s(self) -> float:
        return self._clock() - self._began_s

    def _time_text(self) -> str:
        if self._budget_s is None:
            return f"{duration(self._spent_s)} so far"
        left_s = self._budget_s - self._spent_s
        if left_s < 0:
            return f"{duration(-left_s)} over budget"
        return f"budget left {_minutes(left_s)} (usually ends sooner)"

    def _note_overrun(self, event: LaunchStarted) -> None:
        """Print, once for each phase, that it continues although the budget is used up."""
        if self._budget_s is None or self._spent_s <= self._budget_s:
            return
        phase = event.purpose.phase
        if self._overrun_phase != phase:
            self._overrun_phase = phase
            line = overrun_line(phase, self._budget_s, self._spent_s)
            self._print(f"notice: {line}", "yellow")

    def _print(self, line: str, style: str) -> None:
        if line:
            with self._lock:
                self._console.print(Text(line, style=style))


def _minutes(seconds: float) -> str:
    """Return a time without the seconds beyond a minute."""
    return duration(seconds) if seconds < 60 else f"{int(seconds // 60)} min"  # noqa: PLR2004


def _style(event: Event) -> str:
    if isinstance(event, LaunchEnded) and not event.trial.is_completed:
        return "yellow"
    if isinstance(event, Incumbent | RoundEnded):
        return "green"
    return "bold" if isinstance(event, PhaseStarted) else ""


def _draw(
    state: LiveState, memory: MemoryBars, *, now_s: float, time_text: str, columns: int
) -> list[Text]:
    """Return the lines of the view; `time_text` is the state of the budget."""
    lines = [
        Text(_progress(state, time_text), style="bold"),
        *_launch_lines(state, now_s),
        *(_memory_lines(memory, columns) if state.launch is not None else ()),
        *_strip_lines(state, columns),
    ]
    if state.round is not None:
        lines.append(Text(round_line(state.round, state.numbers), style="green"))
    elif state.incumbent is not None:
        lines.append(Text(incumbent_line(state.incumbent), style="green"))
    for line in lines:
        line.truncate(columns, overflow="ellipsis")
    return lines


def _progress(state: LiveState, time_text: str) -> str:
    is_step = state.is_tune and state.phase in PHASES
    steps = f"{PHASES.index(state.phase) + 1}/{len(PHASES)} " if is_step else ""
    phase = state.phase or "preparing"
    limit = f" of {state.max_launches}" if state.max_launches is not None else ""
    count = f"{state.launches_in_phase}{limit}"
    plural = "" if count == "1" else "es"
    launches = f" · {count} launch{plural}" if state.phase else ""
    skipped = f" · {state.skipped} ruled out" if state.skipped else ""
    return f"{steps}{phase}{launches}{skipped} · {time_text}"


def _launch_lines(state: LiveState, now_s: float) -> Iterator[Text]:
    launch = state.launch
    if launch is None:
        return
    purpose = launch.purpose
    phase = purpose.phase if purpose.phase != state.phase else ""
    began = " ".join(
        part for part in (f"launch {launch.number}", phase, one_line(launch.layout)) if part
    )
    yield Text(f"{began}: {one_line(purpose.description) or purpose.phase}")
    settings = settings_text(
        launch.candidate,
        launch.layout,
        purpose,
        best=state.reference,
        first=state.first,
        number=launch.number,
    )
    yield Text(f"  {settings}", style="dim")
    own = state.stages.get(state.stage, 0.0) + now_s - state.stage_began_s
    over = [f"{stage} {duration(s)}" for stage, s in state.stages.items() if stage != state.stage]
    text = Text("  ")
    text.append(f"{state.stage or 'start'} {duration(own)}", style="bold")
    yield text.append(f" (before: {', '.join(over)})" if over else "", style="dim")


def _memory_lines(memory: MemoryBars, columns: int) -> Iterator[Text]:
    bars = list(memory.draw(columns))
    yield from bars[:_SHOWN_BARS]
    if len(bars) > _SHOWN_BARS:
        yield Text(f"and {len(bars) - _SHOWN_BARS} more devices", style="dim")


def _strip_lines(state: LiveState, columns: int) -> Iterator[Text]:
    shown = list(state.strips.values())[-_SHOWN_STRIPS:]
    if not shown:
        return
    yield Text(f"layers with experts in RAM  {LEGEND}", style="dim")
    width = min(max(len(one_line(strip.name)) for strip in shown), columns // 3)
    for strip in shown:
        name = Text(f"  {one_line(strip.name)}")
        name.truncate(width + 2, overflow="ellipsis", pad=True)
        yield name.append(" ").append(strip.draw(state.max_layers(), columns - width - 3))
