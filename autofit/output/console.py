"""A tune as it goes on, told on stderr: plain lines for a log, a live view on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autofit.output.text import duration, number, one_line, speedup
from autofit.output.trial_row import TrialRow, brief_params, trial_row
from autofit.trial.metric import Metric
from autofit.trial.trial import PHASES
from autofit.trial.workload import Workload
from autofit.tuning.event import (
    BoundaryMoved,
    CandidateSkipped,
    Event,
    Finished,
    Incumbent,
    LaunchEnded,
    LaunchStarted,
    Notice,
    PhaseStarted,
    StageStarted,
)

_METRIC_UNITS: dict[Metric, str] = {
    "request_s": "s/request",
    "pp": "pp/s",
    "tg": "tg/s",
    "ttft": "s to first token",
}

# A log is not a terminal: its lines need no wrapping.
_LOG_COLUMNS = 10_000


class _PipedConsole(Console):
    """A console that leaves it to the caller what a closed pipe means; rich would exit."""

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


@dataclass(frozen=True, slots=True)
class _State:
    """What the live view shows; replaced as a whole by each event."""

    phase: str = ""
    max_launches: int | None = None
    launches_in_phase: int = 0
    launch: LaunchStarted | None = None
    stage: str = ""
    stage_began_s: float = 0.0
    incumbent: Incumbent | None = None
    boundary: BoundaryMoved | None = None
    skipped: int = 0


class TuneConsole:
    """Listens to a tune and shows it; one line stays for each launch.

    `budget_s` is the time the tune may take, None without a limit; `clock` gives seconds.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        budget_s: float | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workload = workload
        self._budget_s = budget_s
        self._clock = clock
        self._began_s = clock()
        self._console = make_console(stream or sys.stderr)
        self._state = _State()
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
        self._state = self._next_state(event)
        line = _line(event, self._workload)
        if line:
            self._console.print(Text(line, style=_style(event)))

    def view(self) -> RenderableType:
        """The live view as it is now."""
        state = self._state
        lines = [Text(self._progress(state), style="bold")]
        if state.launch is not None:
            launch = state.launch
            began = f"launch {launch.number} {one_line(launch.layout)}".rstrip()
            lines.append(Text(f"{began}: {one_line(launch.purpose) or launch.phase}"))
            lines.append(Text(f"  {brief_params(launch.candidate.params)}", style="dim"))
            stage_s = self._clock() - state.stage_began_s
            lines.append(Text(f"  {state.stage or 'start'} {duration(stage_s)}"))
        if state.boundary is not None:
            lines.append(Text(_boundary_line(state.boundary)))
        if state.incumbent is not None:
            lines.append(Text(_incumbent_line(state.incumbent), style="green"))
        for line in lines:
            line.truncate(self._console.width, overflow="ellipsis")
        return Group(*lines)

    def _progress(self, state: _State) -> str:
        spent_s = self._clock() - self._began_s
        steps = f"{PHASES.index(state.phase) + 1}/{len(PHASES)} " if state.phase in PHASES else ""
        limit = f" of at most {state.max_launches}" if state.max_launches is not None else ""
        time_left = (
            f"{duration(max(0.0, self._budget_s - spent_s))} left"
            if self._budget_s is not None
            else f"{duration(spent_s)} so far"
        )
        skipped = f" · {state.skipped} ruled out" if state.skipped else ""
        phase = state.phase or "looking"
        launches = f" · {state.launches_in_phase}{limit} launches" if state.phase else ""
        return f"{steps}{phase}{launches}{skipped} · {time_left}"

    def _next_state(self, event: Event) -> _State:
        state, now = self._state, self._clock()
        if isinstance(event, PhaseStarted):
            return replace(
                state, phase=event.phase, max_launches=event.max_launches, launches_in_phase=0
            )
        if isinstance(event, LaunchStarted):
            return replace(
                state,
                launch=event,
                stage="",
                stage_began_s=now,
                launches_in_phase=state.launches_in_phase + 1,
            )
        if isinstance(event, StageStarted):
            return replace(state, stage=event.stage, stage_began_s=now)
        if isinstance(event, LaunchEnded | Finished):
            return replace(state, launch=None, stage="")
        if isinstance(event, CandidateSkipped):
            return replace(state, skipped=state.skipped + 1)
        if isinstance(event, Incumbent):
            return replace(state, incumbent=event)
        if isinstance(event, BoundaryMoved):
            return replace(state, boundary=event)
        return state


def _line(event: Event, workload: Workload) -> str:
    """The event as one line of a log; empty where it is not worth one."""
    if isinstance(event, PhaseStarted):
        limit = f" (at most {event.max_launches} launches)" if event.max_launches else ""
        return f"phase {event.phase}{limit}"
    if isinstance(event, LaunchEnded):
        known = " (known from before)" if event.is_reused else ""
        return _trial_line(trial_row(event.trial, workload)) + known
    if isinstance(event, Incumbent):
        return _incumbent_line(event)
    if isinstance(event, BoundaryMoved):
        return _boundary_line(event)
    if isinstance(event, Notice):
        return f"notice: {one_line(event.text)}"
    return ""


def _trial_line(row: TrialRow) -> str:
    what = " ".join(part for part in (f"#{row.number}", row.phase, row.layout, row.params) if part)
    told = f"{what}: {row.outcome} in {row.seconds}"
    if not row.is_completed:
        return f"{told}: {row.evidence}" if row.evidence else told
    speeds = zip(
        _METRIC_UNITS.values(),
        (row.request_s, row.pp_per_s, row.tg_per_s, row.ttft_s),
        strict=True,
    )
    measured = ", ".join(f"{value} {unit}" for unit, value in speeds if value)
    free = f"; free {row.free_mib}" if row.free_mib else ""
    notes = "".join(f"; {note}" for note in row.notes)
    nothing = "holds at full context" if row.phase == "prove" else "nothing measured"
    return f"{told}: {measured or nothing}{free}{notes}"


def _boundary_line(event: BoundaryMoved) -> str:
    fits = "nothing known to fit" if event.fits is None else f"{event.fits} fit"
    fails = "nothing known to fail" if event.fails is None else f"{event.fails} fail"
    where = one_line(f"{event.layout} {event.cache_type}")
    return f"host expert layers, {where}: {fits}, {fails}"


def _incumbent_line(event: Incumbent) -> str:
    gain = f", {speedup(event.gain)} the baseline" if event.gain is not None else ""
    is_slower = event.gain is not None and event.gain < 1
    best = "best candidate so far" if is_slower else "best so far"
    value = f"{number(event.value)} {_METRIC_UNITS[event.metric]}"
    return f"{best}: #{event.number}, {value}{gain}, unconfirmed"


def _style(event: Event) -> str:
    if isinstance(event, LaunchEnded) and not event.trial.is_completed:
        return "yellow"
    if isinstance(event, Incumbent):
        return "green"
    return "bold" if isinstance(event, PhaseStarted) else ""
