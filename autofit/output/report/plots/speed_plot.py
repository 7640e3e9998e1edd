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
    safe,
    short_name,
    symbol_points,
)
from autofit.output.report.plots.plot_data import (
    PlotData,
    group,
    hover,
    launch_numbers,
    metric_text,
)
from autofit.output.text.result_table import ubatch_cell
from autofit.text_format import number, one_line
from autofit.trial.trial import Trial

if TYPE_CHECKING:
    import plotly.graph_objects as go


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
    _points(figure, measured, groups, data)
    _endings(figure, [*failed, *(fitting if measured else unmeasured)], groups)
    caption = [*_speed_sentences(measured, data), *_failure_sentences(failed)]
    if measured and fitting:
        caption.append(f"{launch_numbers([t for t, _ in fitting])} tested only the fit.")
    caption += _baseline(figure, [n for _, n in placed], data)
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
    for kind in sorted({trial.outcome.kind for trial, _ in ended}):
        colour, symbol = ENDINGS.get(kind, (GREY, "diamond"))
        points = [(trial, layers) for trial, layers in ended if trial.outcome.kind == kind]
        symbol_points(
            figure,
            name=kind.replace("_", " "),
            x=[layers for _, layers in points],
            y=[groups.index(group(trial)) for trial, _ in points],
            text=[hover(trial) for trial, _ in points],
            colour=colour,
            symbol=symbol,
            yaxis="y2",
        )


def _baseline(figure: go.Figure, layers: Sequence[int], data: PlotData) -> list[str]:
    """Draw the baseline as a line if the runtime placed its layers; return a sentence about it."""
    values = [
        value
        for trial, value in data.measured()
        if data.role(trial) == "baseline" and data.host_layers(trial) is None
    ]
    if not values:
        return []
    middle = median(values)
    figure.add_scatter(
        x=[min(layers) - 0.8, max(layers) + 0.8],
        y=[middle, middle],
        mode="lines",
        name="baseline",
        line={"color": GREY, "dash": "dot"},
        hovertemplate="baseline, median %{y:,.4r}<extra></extra>",
    )
    return [f"Baseline, layers placed by the runtime: {number(middle)} (median)."]


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
    where = ", ".join(str(n) for n in sorted({layers for _, layers in failed}))
    return [f"{len(failed)} failed, at {where} ({launch_numbers([t for t, _ in failed])})."]


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
        annotation={"text": safe(f"cliff: {row.get('metric')} x {ratio}"), "yanchor": "bottom"},
        annotation_position="top",
    )
    where = f"{one_line(_line_of(row))} from {start} to {end}"
    return [f"Cliff of {where}: {row.get('metric')} times {ratio}."]
