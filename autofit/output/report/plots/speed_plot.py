"""The plot of speed against host expert layers, with failures, fit boundaries and cliffs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from autofit.output.report.plots.figure import (
    COLOURS,
    ENDINGS,
    GREY,
    NoPlot,
    Plot,
    axis,
    count_axis,
    new_figure,
    readable_range,
    safe,
    short_name,
    symbol_points,
)
from autofit.output.report.plots.plot_data import (
    PlotData,
    by_outcome,
    group,
    hover,
    launch_numbers,
    metric_text,
)
from autofit.output.text.result_table import ubatch_cell
from autofit.text_format import number, one_line
from autofit.trial.metric import is_higher_better
from autofit.trial.trial import Trial

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Launches off the scale that the caption names; it counts the others.
_MOST_NAMED = 4


def speed_plot(data: PlotData) -> Plot | NoPlot:
    """Plot the metric of every launch over its host expert layers.

    A strip below has a row for each layout and KV type, with failures and the fit boundary.
    """
    title = f"{data.metric_words.capitalize()} against {data.host_words}"
    placed = [(t, n) for t in data.trials if (n := data.host_layers(t)) is not None]
    measured = [(t, n, v) for t, n in placed if (v := data.value(t)) is not None]
    failed = [(t, n) for t, n in placed if not t.is_completed]
    if not measured and not failed:
        return NoPlot(title, "no launch set the number of layers in system RAM")
    groups = sorted({group(trial) for trial, _ in placed})
    boundaries = [row for row in (data.result or {}).get("boundary") or () if _is_known(row)]
    unmeasured = [(t, n) for t, n in placed if t.is_completed and data.value(t) is None]
    fitting = [(t, n) for t, n in unmeasured if t.phase == "boundary" and t.shows_fit_only]
    if not measured:
        title = f"{data.host_words.capitalize()} that fit, and that do not"
    figure = _empty(
        data,
        [n for _, n in placed],
        groups,
        has_speeds=bool(measured),
        has_strip=bool(failed or fitting) or any(_line_of(row) in groups for row in boundaries),
    )
    baseline = _baseline_median(data)
    ends = _scale(measured, baseline, data)
    on_scale = [p for p in measured if ends is None or ends[0] <= p[2] <= ends[1]]
    _points(figure, on_scale, groups, data)
    _endings(figure, [*failed, *(fitting if measured else unmeasured)], groups)
    caption = _speed_sentences(measured, data)
    if ends is not None:
        caption += _off_scale(figure, ends, [p for p in measured if p not in on_scale], data)
    caption += _failure_sentences(failed)
    if measured and fitting:
        caption.append(f"{launch_numbers([t for t, _ in fitting])} tested only the fit.")
    if baseline is not None:
        caption.append(_baseline(figure, [n for _, n in placed], baseline))
    for row in boundaries:
        caption += _boundary(figure, row, groups)
    for row in (data.result or {}).get("cliffs") or ():
        caption += _cliff(figure, row)
    height = (430 if measured else 180) + 24 * len(groups)
    return Plot(title, " ".join(caption), figure, height=height)


def _empty(
    data: PlotData,
    layers: Sequence[int],
    groups: Sequence[str],
    *,
    has_speeds: bool,
    has_strip: bool,
) -> go.Figure:
    """Return a figure without data: axes for speeds above and for a strip below, or only one."""
    rows = {"range": [-0.7, len(groups) - 0.3], "tickvals": list(range(len(groups)))}
    if not has_speeds:
        return new_figure(
            data.host_axis,
            "",
            xaxis=count_axis(data.host_axis, layers, anchor="y2"),
            yaxis={"visible": False, "domain": [0.98, 1.0]},
            yaxis2=axis("", domain=[0.0, 0.95], ticktext=[*map(short_name, groups)], **rows),
        )
    if not has_strip:
        return new_figure(
            data.host_axis, data.metric_words, xaxis=count_axis(data.host_axis, layers)
        )
    strip = min(0.4, 0.05 + 0.05 * len(groups))
    return new_figure(
        data.host_axis,
        data.metric_words,
        xaxis=count_axis(data.host_axis, layers, anchor="y2"),
        yaxis=axis(data.metric_words, domain=[strip + 0.08, 1.0]),
        yaxis2=axis("fails", domain=[0.0, strip], showticklabels=False, **rows),
    )


def _points(
    figure: go.Figure,
    measured: Sequence[tuple[Trial, int, float]],
    groups: Sequence[str],
    data: PlotData,
) -> None:
    for name in groups:
        points = sorted((p for p in measured if group(p[0]) == name), key=lambda p: p[1])
        symbol_points(
            figure,
            name=name,
            x=[layers for _, layers, _ in points],
            y=[value for _, _, value in points],
            text=[hover(t, metric_text(v, data.metric_words)) for t, _, v in points],
            colour=_colour(name, groups),
        )
    winners = [p for p in measured if data.role(p[0]) == "winner"]
    if winners:
        figure.add_scatter(
            x=[layers for _, layers, _ in winners],
            y=[value for _, _, value in winners],
            mode="markers",
            name="winner",
            hoverinfo="skip",
            marker={"symbol": "circle-open", "size": 18, "line": {"width": 2}, "color": GREY},
        )


def _colour(name: str, groups: Sequence[str]) -> str:
    return COLOURS[groups.index(name) % len(COLOURS)]


def _endings(figure: go.Figure, ended: Sequence[tuple[Trial, int]], groups: Sequence[str]) -> None:
    layers = {trial.number: count for trial, count in ended}
    for kind, trials in by_outcome(trial for trial, _ in ended).items():
        colour, symbol = ENDINGS.get(kind, (GREY, "diamond"))
        symbol_points(
            figure,
            name=kind.replace("_", " "),
            x=[layers[trial.number] for trial in trials],
            y=[groups.index(group(trial)) for trial in trials],
            text=[hover(trial) for trial in trials],
            colour=colour,
            symbol=symbol,
            yaxis="y2",
        )


def _scale(
    measured: Sequence[tuple[Trial, int, float]], baseline: float | None, data: PlotData
) -> tuple[float, float] | None:
    """Return the ends of the axis of speeds if some launches are off the scale."""
    return readable_range(
        [value for _, _, value in measured],
        is_higher_better=is_higher_better(data.metric),
        kept=[] if baseline is None else [baseline],
    )


def _off_scale(
    figure: go.Figure,
    ends: tuple[float, float],
    points: Sequence[tuple[Trial, int, float]],
    data: PlotData,
) -> list[str]:
    """End the axis, draw slower launches at its end, and return a sentence with their values."""
    is_higher = is_higher_better(data.metric)
    figure.update_layout(yaxis_range=list(ends))
    symbol_points(
        figure,
        name="off the scale",
        x=[layers for _, layers, _ in points],
        y=[ends[0] if is_higher else ends[1]] * len(points),
        text=[hover(t, metric_text(v, data.metric_words)) for t, _, v in points],
        colour=GREY,
        symbol="arrow-down" if is_higher else "arrow-up",
        size=13,
        cliponaxis=False,
    )
    named = ", ".join(f"#{t.number} with {number(v)}" for t, _, v in points[:_MOST_NAMED])
    more = len(points) - _MOST_NAMED
    return [f"Off the scale: {named}{f' and {more} more' if more > 0 else ''}."]


def _baseline_median(data: PlotData) -> float | None:
    """Return the median of the baseline's launches if the runtime placed its layers."""
    values = [
        value
        for trial, value in data.measured()
        if data.role(trial) == "baseline" and data.host_layers(trial) is None
    ]
    return median(values) if values else None


def _baseline(figure: go.Figure, layers: Sequence[int], middle: float) -> str:
    """Draw the baseline as a line, and return a sentence about it."""
    figure.add_scatter(
        x=[min(layers) - 0.8, max(layers) + 0.8],
        y=[middle, middle],
        mode="lines",
        name="baseline",
        line={"color": GREY, "dash": "dot"},
        hovertemplate="baseline, median %{y:,.4r}<extra></extra>",
    )
    return f"Baseline, layers placed by the runtime: {number(middle)} (median)."


def _speed_sentences(measured: Sequence[tuple[Trial, int, float]], data: PlotData) -> list[str]:
    if not measured:
        return ["None of these launches measured a speed."]
    layers = [n for _, n, _ in measured]
    best, value = data.best([(trial, value) for trial, _, value in measured])
    at = next(n for trial, n, _ in measured if trial is best)
    count = "1 launch" if len(measured) == 1 else f"{len(measured)} launches"
    return [
        (
            f"{count} measured with {min(layers)} to {max(layers)} {data.host_words}; "
            f"the best single launch is #{best.number} with {number(value)} at {at}."
        )
    ]


def _failure_sentences(failed: Sequence[tuple[Trial, int]]) -> list[str]:
    if not failed:
        return ["None failed."]
    layers = {trial.number: count for trial, count in failed}
    kinds = []
    for kind, trials in by_outcome(trial for trial, _ in failed).items():
        where = ", ".join(map(str, sorted({layers[trial.number] for trial in trials})))
        kinds.append(
            f"{len(trials)} {kind.replace('_', ' ')}, at {where} ({launch_numbers(trials)})"
        )
    return [f"{len(failed)} failed: {'; '.join(kinds)}."]


def _is_known(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("fits"), int) and isinstance(row.get("fails"), int)


def _line_of(row: Mapping[str, Any]) -> str:
    """Return the group that a boundary of the result belongs to."""
    return f"{row.get('layout')}, KV {row.get('cache_type')}"


def _boundary(figure: go.Figure, row: Mapping[str, Any], groups: Sequence[str]) -> list[str]:
    fits, fails = row["fits"], row["fails"]
    name = _line_of(row)
    if name in groups:
        at = groups.index(name)
        figure.add_shape(
            type="rect",
            yref="y2",
            x0=fails,
            x1=fits,
            y0=at - 0.3,
            y1=at + 0.3,
            fillcolor=_colour(name, groups),
            opacity=0.35,
            line_width=0,
            layer="below",
        )
    sure = "both sides launched" if row.get("proven") else "partly estimated"
    label = one_line(f"{name}, ubatch {ubatch_cell(row)}" if row.get("ubatch") else name)
    return [f"Fit boundary of {label}: {fits} fit, {fails} do not ({sure})."]


def _cliff(figure: go.Figure, row: Mapping[str, Any]) -> list[str]:
    if row.get("param") != "n_cpu_moe":
        return []
    start, end = row.get("from"), row.get("to")
    if not isinstance(start, int) or not isinstance(end, int):
        return []
    ratio = number(row.get("ratio"))
    figure.add_vline(
        x=(start + end) / 2,
        line={"color": GREY, "dash": "dash", "width": 1.5},
        # Within the plot: above it is the legend.
        annotation={"text": safe(f"cliff: {row.get('metric')} x {ratio}"), "yanchor": "top"},
        annotation_position="top right",
    )
    where = f"{one_line(_line_of(row))} from {start} to {end}"
    return [f"Cliff of {where}: {row.get('metric')} times {ratio}."]
