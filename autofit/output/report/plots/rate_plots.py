"""The plots of both rates: by depth, and prompt processing against generation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from autofit.output.report.plots.figure import (
    BASELINE,
    GREY,
    WINNER,
    NoPlot,
    Plot,
    axis,
    new_figure,
    symbol_points,
)
from autofit.output.report.plots.plot_data import PlotData, hover
from autofit.output.text.trial_row import brief_params
from autofit.text_format import METRIC_WORDS, number
from autofit.trial.measurement import Sample
from autofit.trial.trial import Trial

_DEPTH_TITLE = "Speed against depth"
_X = "tokens in the cache when generation began"
# The rate of shorter generations is too inexact.
_LEAST_STEPS = 8


def depth_plot(data: PlotData) -> Plot | NoPlot:
    """Plot the median rates of baseline and winner at each depth, up to the full context."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for role, trial in data.shown_pair():
        launches = data.of_candidate(trial)
        curves["tg", role] = _by_depth(launches, _generated)
        curves["pp", role] = _by_depth(launches, lambda sample: sample.pp_per_s)
    depths = sorted({depth for curve in curves.values() for depth in curve})
    if len(depths) < 2:  # noqa: PLR2004 - one depth is no curve
        return NoPlot(_DEPTH_TITLE, "only prompts of one length were measured")
    figure = new_figure(
        _X,
        METRIC_WORDS["tg"],
        xaxis=axis(_X, anchor="y2", rangemode="tozero"),
        yaxis=axis("generated tokens/s", domain=[0.55, 1.0], rangemode="tozero"),
        yaxis2=axis("prompt tokens/s", domain=[0.0, 0.45], rangemode="tozero"),
    )
    for (rate, role), curve in curves.items():
        is_baseline = role in ("baseline", "A")
        figure.add_scatter(
            x=sorted(curve),
            y=[curve[depth] for depth in sorted(curve)],
            mode="lines+markers",
            name=role,
            legendgroup=role,
            showlegend=rate == "tg",
            yaxis="y" if rate == "tg" else "y2",
            line={"color": BASELINE, "dash": "dash"} if is_baseline else {"color": WINNER},
            marker={"symbol": "diamond" if is_baseline else "circle", "size": 9},
            hovertemplate="%{x:,} tokens deep: %{y:,.4r} tokens/s<extra></extra>",
        )
    return Plot(
        _DEPTH_TITLE,
        "Medians over all launches of each; the upper half is generation, the lower half "
        "processing of prompts of that length.",
        figure,
        height=480,
        head=("depth", *(f"{role}, {rate}/s" for rate, role in curves)),
        rows=[
            (f"{depth:,}", *(number(c[depth]) if depth in c else "" for c in curves.values()))
            for depth in depths
        ],
    )


def _generated(sample: Sample) -> float | None:
    return sample.tg_per_s if sample.predicted_tokens > _LEAST_STEPS else None


def _by_depth(
    launches: Iterable[Trial], rate: Callable[[Sample], float | None]
) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for trial in launches:
        for sample in trial.measurement.samples if trial.measurement else ():
            value = rate(sample)
            if not sample.is_warmup and value is not None:
                values.setdefault(sample.depth, []).append(value)
    return {depth: median(found) for depth, found in values.items()}


_PARETO_TITLE = "Prompt processing against generation"
_LOOKS = {
    "": ("launch", GREY, "circle", 8),
    "baseline": ("baseline", BASELINE, "diamond", 12),
    "winner": ("winner", WINNER, "star", 15),
}

_Point = tuple[Trial, float, float]


def pareto_plot(data: PlotData) -> Plot | NoPlot:
    """Plot both rates of every launch, and a line through the best trade-offs."""
    points = [
        (trial, pp, tg)
        for trial in data.trials
        if (pp := data.value(trial, "pp")) is not None
        and (tg := data.value(trial, "tg")) is not None
    ]
    if len(points) < 2:  # noqa: PLR2004 - one alone has nothing to be compared with
        return NoPlot(_PARETO_TITLE, "fewer than two launches measured both rates")
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
        _PARETO_TITLE,
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
