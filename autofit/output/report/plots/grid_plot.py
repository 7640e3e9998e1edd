"""The map of host expert layers and ubatch: the best launch of each cell, and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autofit.output.report.plots.figure import (
    ENDINGS,
    FAILED,
    GREY,
    NoPlot,
    Plot,
    axis,
    count_axis,
    new_figure,
    readable_range,
    symbol_points,
)
from autofit.output.report.plots.plot_data import (
    PlotData,
    by_outcome,
    group,
    hover,
    metric_text,
    outcome_counts,
)
from autofit.text_format import number, one_line
from autofit.trial.metric import is_higher_better
from autofit.trial.outcome import lacks_device_memory
from autofit.trial.trial import Trial

if TYPE_CHECKING:
    import plotly.graph_objects as go

_Y = "ubatch (tokens)"
_Cell = tuple[int, int]


def grid_plot(data: PlotData) -> Plot | NoPlot:
    """Plot the best launch of each cell of one layout and KV type, and the failures."""
    title = f"{data.metric_words.capitalize()} by {data.host_words} and ubatch"
    placed: list[tuple[Trial, _Cell]] = [
        (trial, (layers, trial.candidate.get_int("ubatch", 0)))
        for trial in data.trials
        if (layers := data.host_layers(trial)) is not None and "ubatch" in trial.candidate.params
    ]
    name = _group_to_show(data, [trial for trial, _ in placed])
    shown = [(trial, cell) for trial, cell in placed if group(trial) == name]
    best = _best_cells(data, shown)
    failed = {cell: t for t, cell in shown if not t.is_completed and cell not in best}
    if len({*best, *failed}) < 2:  # noqa: PLR2004 - one cell is no map
        return NoPlot(title, "fewer than two combinations of both were launched in one layout")
    ubatches = sorted({cell[1] for cell in (*best, *failed)})
    columns = [cell[0] for cell in (*best, *failed)]
    figure = new_figure(
        data.host_axis,
        _Y,
        xaxis=count_axis(data.host_axis, columns),
        yaxis=axis(_Y, tickvals=list(range(len(ubatches))), ticktext=list(map(str, ubatches)))
        | {"range": [-0.6, len(ubatches) - 0.4]},
    )
    # Running out of host memory does not rule out candidates that need less of it.
    full = [cell for cell, trial in failed.items() if lacks_device_memory(trial.outcome)]
    _draw_region(figure, full, ubatches, min(columns))
    _draw_cells(figure, data, best, ubatches)
    cells = {trial.number: cell for cell, trial in failed.items()}
    for kind, trials in by_outcome(failed.values()).items():
        colour, symbol = ENDINGS.get(kind, (GREY, "diamond"))
        symbol_points(
            figure,
            name=kind.replace("_", " "),
            x=[cells[trial.number][0] for trial in trials],
            y=[ubatches.index(cells[trial.number][1]) for trial in trials],
            text=[hover(trial) for trial in trials],
            colour=colour,
            symbol=symbol,
            size=12,
        )
    ended = f"failed: {outcome_counts(failed.values())}" if failed else "none failed"
    return Plot(
        title,
        f"{one_line(name)}: {len(best)} combinations ran, each shown by its best launch; {ended}."
        + f" The shaded region needs at least as much device memory as a failure: fewer "
        f"{data.host_words}, or a larger ubatch." * bool(full),
        figure,
        height=300 + 36 * len(ubatches),
        head=("ubatch", data.host_words, data.metric_words),
        rows=_rows(best, failed),
    )


def _group_to_show(data: PlotData, trials: Sequence[Trial]) -> str:
    """Return the winner's group if it has several launches, else the largest group."""
    counts = Counter(group(trial) for trial in trials)
    winners = [name for t in trials if data.role(t) == "winner" and counts[name := group(t)] > 1]
    return winners[0] if winners else max(counts, key=lambda name: counts[name], default="")


def _best_cells(
    data: PlotData, shown: Sequence[tuple[Trial, _Cell]]
) -> dict[_Cell, tuple[Trial, float]]:
    cells: dict[_Cell, list[tuple[Trial, float]]] = {}
    for trial, cell in shown:
        value = data.value(trial)
        if value is not None:
            cells.setdefault(cell, []).append((trial, value))
    return {cell: data.best(values) for cell, values in cells.items()}


def _draw_region(
    figure: go.Figure, full: Sequence[_Cell], ubatches: Sequence[int], fewest: int
) -> None:
    """Shade the region that the failures rule out."""
    for index, ubatch in enumerate(ubatches):
        ruled_out = [layers for layers, failed_at in full if failed_at <= ubatch]
        if ruled_out:
            figure.add_shape(
                type="rect",
                x0=fewest - 1,
                x1=max(ruled_out) + 0.5,
                y0=index - 0.5,
                y1=index + 0.5,
                fillcolor=FAILED,
                opacity=0.15,
                line_width=0,
                layer="below",
            )


def _draw_cells(
    figure: go.Figure,
    data: PlotData,
    best: dict[_Cell, tuple[Trial, float]],
    ubatches: Sequence[int],
) -> None:
    values = [value for _, value in best.values()]
    if not values:
        return
    is_higher = is_higher_better(data.metric)
    low, high = readable_range(values, is_higher_better=is_higher) or (min(values), max(values))
    figure.add_scatter(
        x=[layers for layers, _ in best],
        y=[ubatches.index(ubatch) for _, ubatch in best],
        mode="markers",
        name="ran",
        text=[hover(t, metric_text(v, data.metric_words)) for t, v in best.values()],
        hovertemplate="%{text}<extra></extra>",
        marker={
            "symbol": "square",
            "size": _cell_size([layers for layers, _ in best]),
            "color": values,
            "colorscale": "Cividis",
            "cmin": low,
            "cmax": high,
            "reversescale": not is_higher,
            "showscale": True,
            "colorbar": {"title": {"text": data.metric_words, "side": "right"}, "thickness": 12},
            "line": {"width": 1, "color": GREY},
        },
        showlegend=False,
    )


def _cell_size(columns: Sequence[int]) -> float:
    """Return a size in pixels at which neighbours do not overlap."""
    return max(7.0, min(22.0, 800 / (max(columns) - min(columns) + 1)))


def _rows(
    best: dict[_Cell, tuple[Trial, float]], failed: dict[_Cell, Trial]
) -> list[tuple[str, ...]]:
    cells = {cell: number(value) for cell, (_, value) in best.items()}
    cells |= {cell: trial.outcome.kind.replace("_", " ") for cell, trial in failed.items()}
    ordered = sorted(cells.items(), key=lambda item: (item[0][1], item[0][0]))
    return [(str(ubatch), str(layers), text) for (layers, ubatch), text in ordered]
