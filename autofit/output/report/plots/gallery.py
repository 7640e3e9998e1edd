"""All plots of a report, in reading order."""

from __future__ import annotations

from collections.abc import Callable

from autofit.output.report.plots.depth_plot import depth_plot
from autofit.output.report.plots.figure import NoPlot, Plot
from autofit.output.report.plots.grid_plot import grid_plot
from autofit.output.report.plots.memory_plot import memory_plot
from autofit.output.report.plots.pareto_plot import pareto_plot
from autofit.output.report.plots.plot_data import PlotData
from autofit.output.report.plots.rounds_plot import rounds_plot
from autofit.output.report.plots.slices_plot import slices_plot
from autofit.output.report.plots.speed_plot import speed_plot
from autofit.output.report.plots.timeline_plot import timeline_plot

_DRAWN: tuple[Callable[[PlotData], Plot | NoPlot], ...] = (
    speed_plot,
    grid_plot,
    memory_plot,
    slices_plot,
    rounds_plot,
    pareto_plot,
    depth_plot,
    timeline_plot,
)


def plots(data: PlotData) -> tuple[list[Plot], list[NoPlot]]:
    """Return the plots that the study has data for, and those that are left out."""
    made = [_drawn(draw, data) for draw in _DRAWN]
    return (
        [plot for plot in made if isinstance(plot, Plot)],
        [plot for plot in made if isinstance(plot, NoPlot)],
    )


def _drawn(draw: Callable[[PlotData], Plot | NoPlot], data: PlotData) -> Plot | NoPlot:
    """Return a plot, or its fault as the reason why it is left out: the report has much else."""
    try:
        return draw(data)
    except Exception as error:  # noqa: BLE001 - also a fault in plotly
        title = draw.__name__.replace("_", " ").capitalize()
        return NoPlot(title, f"drawing it failed: {type(error).__name__}: {error}")
