"""The plots of launches: the contenders of each round, and all launches over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from autofit.output.report.plots.figure import (
    BASELINE,
    COLOURS,
    ENDINGS,
    GREY,
    WINNER,
    NoPlot,
    Plot,
    axis,
    count_axis,
    lines,
    new_figure,
    safe,
    short_name,
)
from autofit.output.report.plots.plot_data import PlotData
from autofit.output.text.trial_row import brief_params, outcome_text
from autofit.text_format import duration, number, speedup_text
from autofit.trial.candidate import Candidate
from autofit.trial.purpose import PHASES
from autofit.trial.trial import Trial

_ROUNDS_TITLE = "Rounds"
_SYMBOLS = ("circle", "square", "triangle-up", "cross", "diamond-wide")


def rounds_plot(data: PlotData) -> Plot | NoPlot:
    """Plot the metric of each contender in each round, joined by a line for each round."""
    by_contender = _values(data)
    if not by_contender:
        return NoPlot(_ROUNDS_TITLE, "no round was measured")
    rounds = sorted({each for values in by_contender.values() for each in values})
    figure = new_figure("round", data.metric_words, xaxis=count_axis("round", rounds))
    joined: tuple[list[int | None], list[float | None]] = ([], [])
    for each in rounds:
        values = [row[each] for row in by_contender.values() if each in row]
        joined[0].extend([each, each, None])
        joined[1].extend([min(values), max(values), None])
    figure.add_scatter(
        x=joined[0],
        y=joined[1],
        mode="lines",
        line={"color": GREY, "width": 1},
        hoverinfo="skip",
        showlegend=False,
    )
    for index, (name, row) in enumerate(by_contender.items()):
        figure.add_scatter(
            x=list(row),
            y=list(row.values()),
            mode="markers",
            name=short_name(name),
            hovertemplate="round %{x}: %{y:,.4r}<extra></extra>",
            marker={
                "color": _colour(name, index),
                "symbol": _SYMBOLS[index % len(_SYMBOLS)],
                "size": 11,
            },
        )
    result = data.result or {}
    gain = speedup_text(result.get("gain"), tie=bool(result.get("tie"))) if result else ""
    return Plot(
        _ROUNDS_TITLE,
        f"{len(rounds)} rounds of {len(by_contender)} contenders, launched in random order."
        + (f" {gain}." if gain and result.get("winner") else ""),
        figure,
        head=("contender", *(f"round {each}" for each in rounds)),
        rows=[
            (name, *(number(row[each]) if each in row else "" for each in rounds))
            for name, row in by_contender.items()
        ],
    )


def _values(data: PlotData) -> Mapping[str, Mapping[int, float]]:
    """Return the measured metric by contender and round."""
    found: dict[str, dict[int, float]] = {}
    for trial, value in data.measured(t for t in data.trials if t.phase == "confirm"):
        # In a comparison both sides may have the same settings.
        name = trial.purpose.side or data.role(trial) or _difference(data, trial.candidate)
        row = found.setdefault(name, {})
        row[trial.purpose.round or len(row) + 1] = value
    return found


def _difference(data: PlotData, candidate: Candidate) -> str:
    """Return a contender's name: its differences from the winner."""
    known = data.winner.params if data.winner else {}
    other = {k: v for k, v in candidate.params.items() if known.get(k) != v}
    return brief_params(other) or brief_params(candidate.params) or "runtime's defaults"


def _colour(name: str, index: int) -> str:
    known = {"baseline": BASELINE, "winner": WINNER}
    return known.get(name, COLOURS[(index + 2) % len(COLOURS)])


_TIMELINE_TITLE = "Launches over time"
# Longer pauses belong to a study that was stopped and resumed.
_PAUSE_S = 300.0


def timeline_plot(data: PlotData) -> Plot | NoPlot:
    """Plot a bar for each launch in the row of its phase, coloured by outcome."""
    trials = sorted(data.trials, key=lambda trial: trial.number)
    if not trials:
        return NoPlot(_TIMELINE_TITLE, "nothing was launched yet")
    starts, paused_s = starts_s(trials)
    total_s = max(start + t.seconds for start, t in zip(starts, trials, strict=True))
    unit_s, unit = (60.0, "minutes") if total_s > 600 else (1.0, "seconds")  # noqa: PLR2004
    phases = [phase for phase in PHASES if any(t.phase == phase for t in trials)]
    x_title = f"{unit} since the first launch"
    figure = new_figure(
        x_title,
        "phase",
        barmode="overlay",
        xaxis=axis(x_title),
        yaxis=axis("phase", categoryorder="array", categoryarray=phases[::-1]),
    )
    for kind in sorted({trial.outcome.kind for trial in trials}):
        shown = [(s, t) for s, t in zip(starts, trials, strict=True) if t.outcome.kind == kind]
        figure.add_bar(
            orientation="h",
            base=[round(start / unit_s, 2) for start, _ in shown],
            x=[round(trial.seconds / unit_s, 2) for _, trial in shown],
            y=[trial.phase for _, trial in shown],
            name=safe(kind.replace("_", " ")),
            text=[_hover(trial) for _, trial in shown],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
            marker={
                "color": ENDINGS.get(kind, (GREY, ""))[0],
                "line": {"width": 1, "color": GREY},
                "pattern": {"shape": "" if kind == "completed" else "/", "fillmode": "overlay"},
            },
        )
    by_phase = "; ".join(_phase_words(trials, phase) for phase in phases)
    return Plot(
        _TIMELINE_TITLE,
        f"{by_phase}."
        + (f" Pauses of {duration(paused_s)} in all are left out." if paused_s else "")
        + " The table of launches has the reason for each launch.",
        figure,
        height=170 + 44 * len(phases),
    )


def starts_s(trials: Sequence[Trial]) -> tuple[list[float], float]:
    """Return start times in seconds since the first launch, and the pauses left out.

    A clock that was set back between two launches leaves no pause between them.
    """
    starts = [0.0]
    skipped_s = 0.0
    for before, trial in pairwise(trials):
        pause_s = max(0.0, trial.started_at - before.started_at - before.seconds)
        if pause_s > _PAUSE_S:
            skipped_s += pause_s
            pause_s = 0.0
        starts.append(starts[-1] + before.seconds + pause_s)
    return starts, skipped_s


def _phase_words(trials: Sequence[Trial], phase: str) -> str:
    seconds = [trial.seconds for trial in trials if trial.phase == phase]
    plural = "es" if len(seconds) > 1 else ""
    return f"{phase}: {len(seconds)} launch{plural}, {duration(sum(seconds))}"


def _hover(trial: Trial) -> str:
    return lines(
        f"#{trial.number} {trial.phase} {trial.layout}, {duration(trial.seconds)}",
        trial.description,
        brief_params(trial.candidate.params),
        outcome_text(trial.outcome),
    )
