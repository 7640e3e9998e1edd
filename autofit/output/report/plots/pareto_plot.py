"""The plot of prompt processing against generation."""

from __future__ import annotations

from collections.abc import Sequence

from autofit.output.report.plots.figure import (
    BASELINE,
    GREY,
    WINNER,
    NoPlot,
    Plot,
    new_figure,
    symbol_points,
)
from autofit.output.report.plots.plot_data import PlotData, hover
from autofit.output.text.trial_row import brief_params
from autofit.text_format import METRIC_WORDS, number
from autofit.trial.trial import Trial

_TITLE = "Prompt processing against generation"
_LOOKS = {
    "": ("launch", GREY, "circle", 8),
    "baseline": ("baseline", BASELINE, "diamond", 12),
    "winner": ("winner", WINNER, "star", 15),
}

_Point = tuple[Trial, float, float]


def pareto_plot(data: PlotData) -> Plot | NoPlot:
    """Plot both rates of every launch, and the line of those that no other beats in both."""
    points = [
        (trial, pp, tg)
        for trial in data.trials
        if (pp := data.value(trial, "pp")) is not None
        and (tg := data.value(trial, "tg")) is not None
    ]
    if len(points) < 2:  # noqa: PLR2004 - one alone has nothing to be compared with
        return NoPlot(_TITLE, "fewer than two launches measured both rates")
    figure = new_figure(METRIC_WORDS["pp"], METRIC_WORDS["tg"])
    front = pareto_front(points)
    figure.add_scatter(
        x=[pp for _, pp, _ in front],
        y=[tg for _, _, tg in front],
        mode="lines",
        line={"color": GREY, "dash": "dot", "shape": "vh"},
        name="no other is better in both",
        hoverinfo="skip",
    )
    for role, (name, colour, symbol, size) in _LOOKS.items():
        shown = [point for point in points if data.role(point[0]) == role]
        if shown:
            symbol_points(
                figure,
                name=name,
                x=[pp for _, pp, _ in shown],
                y=[tg for _, _, tg in shown],
                text=[
                    hover(t, f"{number(pp)} prompt, {number(tg)} generated tokens/s")
                    for t, pp, tg in shown
                ],
                colour=colour,
                symbol=symbol,
                size=size,
            )
    return Plot(
        _TITLE,
        f"{len(points)} launches measured both rates, {len(front)} on the line that no other "
        "beats in both. Each is a single launch, so neighbours may swap places.",
        figure,
        head=("launch", "prompt tokens/s", "generated tokens/s", "settings"),
        rows=[
            (f"#{t.number}", number(pp), number(tg), brief_params(t.candidate.params) or "default")
            for t, pp, tg in front
        ],
    )


def pareto_front(points: Sequence[_Point]) -> list[_Point]:
    """Return the points that no other beats in both rates, by rising first rate."""
    front: list[_Point] = []
    for point in sorted(points, key=lambda p: (p[1], p[2]), reverse=True):
        if not front or point[2] > front[-1][2]:
            front.append(point)
    return front[::-1]
