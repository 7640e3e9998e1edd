"""All plots of a report, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Callable

from autofit.output.plot.data import PlotData
from autofit.output.plot.depth import depth_plot
from autofit.output.plot.figure import NoPlot, Plot
from autofit.output.plot.grid import map_plot
from autofit.output.plot.memory import memory_plot
from autofit.output.plot.pareto import pareto_plot
from autofit.output.plot.rounds import rounds_plot
from autofit.output.plot.slices import slices_plot
from autofit.output.plot.speed import speed_plot
from autofit.output.plot.timeline import timeline_plot

_DRAWN: tuple[Callable[[PlotData], Plot | NoPlot], ...] = (
    speed_plot,
    map_plot,
    memory_plot,
    slices_plot,
    rounds_plot,
    pareto_plot,
    depth_plot,
    timeline_plot,
)


def plots(data: PlotData) -> tuple[list[Plot], list[NoPlot]]:
    """The plots that the study has data for, and those that are left out."""
    made = [draw(data) for draw in _DRAWN]
    return (
        [plot for plot in made if isinstance(plot, Plot)],
        [plot for plot in made if isinstance(plot, NoPlot)],
    )
