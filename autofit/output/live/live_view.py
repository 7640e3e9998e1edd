"""Draws the live view: a few lines, none wider than the terminal, readable without colour."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from autofit.output.live.live_state import LiveState
from autofit.output.live.memory_bar import MemoryBars
from autofit.output.live.strip import LEGEND
from autofit.output.text.event_line import incumbent_line, round_line
from autofit.output.text.trial_row import brief_params
from autofit.text_format import duration, one_line
from autofit.trial.purpose import PHASES

# Of layouts and KV types, those that changed last.
_STRIPS = 2


def draw(
    state: LiveState, memory: MemoryBars, *, now_s: float, time_words: str, columns: int
) -> list[Text]:
    """The lines of the view; `time_words` tell of the budget."""
    lines = [
        Text(_progress(state, time_words), style="bold"),
        *_launch_lines(state, now_s),
        *(memory.draw(columns) if state.launch is not None else ()),
        *_strip_lines(state, columns),
    ]
    if state.round is not None:
        lines.append(Text(round_line(state.round, state.numbers), style="green"))
    elif state.incumbent is not None:
        lines.append(Text(incumbent_line(state.incumbent), style="green"))
    for line in lines:
        line.truncate(columns, overflow="ellipsis")
    return lines


def _progress(state: LiveState, time_words: str) -> str:
    steps = f"{PHASES.index(state.phase) + 1}/{len(PHASES)} " if state.phase in PHASES else ""
    phase = state.phase or "looking"
    limit = f" of at most {state.max_launches}" if state.max_launches is not None else ""
    count = f"{state.launches_in_phase}{limit}"
    plural = "" if count == "1" else "es"
    launches = f" · {count} launch{plural}" if state.phase else ""
    skipped = f" · {state.skipped} ruled out" if state.skipped else ""
    return f"{steps}{phase}{launches}{skipped} · {time_words}"


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
    yield Text(f"  {brief_params(launch.candidate.params) or 'runtime defaults'}", style="dim")
    own = state.stages.get(state.stage, 0.0) + now_s - state.stage_began_s
    over = [f"{stage} {duration(s)}" for stage, s in state.stages.items() if stage != state.stage]
    text = Text("  ")
    text.append(f"{state.stage or 'start'} {duration(own)}", style="bold")
    yield text.append(f" (before: {', '.join(over)})" if over else "", style="dim")


def _strip_lines(state: LiveState, columns: int) -> Iterator[Text]:
    shown = list(state.strips.values())[-_STRIPS:]
    if not shown:
        return
    yield Text(f"host expert layers   {LEGEND}", style="dim")
    width = min(max(len(one_line(strip.name)) for strip in shown), columns // 3)
    for strip in shown:
        name = Text(f"  {one_line(strip.name)}")
        name.truncate(width + 2, overflow="ellipsis", pad=True)
        yield name.append(" ").append(strip.draw(state.last_layers(), columns - width - 3))
