"""The plot of the rounds: in each, every contender was launched once in a new process."""

from __future__ import annotations

from collections.abc import Mapping

from autofit.output.report.plots.figure import (
    BASELINE,
    COLOURS,
    GREY,
    WINNER,
    NoPlot,
    Plot,
    count_axis,
    new_figure,
    short_name,
)
from autofit.output.report.plots.plot_data import PlotData
from autofit.output.text.trial_row import brief_params
from autofit.text_format import number, speedup_text
from autofit.trial.candidate import Candidate

_TITLE = "Rounds"
_SYMBOLS = ("circle", "square", "triangle-up", "cross", "diamond-wide")


def rounds_plot(data: PlotData) -> Plot | NoPlot:
    """Plot the metric of each contender in each round, joined by a line for each round."""
    by_contender = _values(data)
    if not by_contender:
        return NoPlot(_TITLE, "no round was measured")
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
        _TITLE,
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
