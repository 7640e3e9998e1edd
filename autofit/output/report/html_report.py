"""The report as one HTML file that needs no network; it needs the extra `report`.

Plotly's script is by far the largest part. It is embedded compressed, and the browser unpacks
it. Without it the page still has everything as text and tables.
"""

from __future__ import annotations

import base64
import gzip
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from autofit.errors import AutofitError
from autofit.output.report.plots.device_plots import memory_plot, slices_plot
from autofit.output.report.plots.figure import NoPlot, Plot
from autofit.output.report.plots.grid_plot import grid_plot
from autofit.output.report.plots.launch_plots import rounds_plot, timeline_plot
from autofit.output.report.plots.plot_data import PlotData
from autofit.output.report.plots.rate_plots import depth_plot, pareto_plot
from autofit.output.report.plots.speed_plot import speed_plot
from autofit.output.text.best_so_far_text import study_conclusion
from autofit.output.text.conclusion import PORT, caveats
from autofit.output.text.result_table import comparison_table
from autofit.output.text.study_text import header_facts
from autofit.output.text.trial_row import command_line, grouped_notes, trial_rows
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.text_format import one_line

_TEMPLATES = Path(__file__).parent / "templates"
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


def html_report(study: Study, *, preset: str = "") -> str:
    """Return the report of a study; `preset` is the text of the winner's preset.

    Raises:
        AutofitError: jinja2 or plotly are not installed.
    """
    try:
        # Heavy, and an extra.
        import jinja2  # noqa: PLC0415
        import plotly  # noqa: F401, PLC0415
    except ImportError as error:
        raise AutofitError(
            f"the HTML report needs {error.name}",
            "pip install 'llama-autofit[report]'; the Markdown report needs nothing",
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    trials, header = study.trials(), study.header
    found = study_conclusion(study)
    rows, common = trial_rows(trials, header.workload)
    drawn, left_out = plots(PlotData(trials, header.workload, header.objective, study.result))
    is_comparison = "ratios" in (study.result or {})
    tables = [comparison_table(study.result or {})] if is_comparison else found.tables
    remarks = caveats(study)
    sections = [
        ("tables", "Both sides" if is_comparison else "Boundary", bool(tables)),
        ("plots", "Plots", bool(drawn)),
        ("spent", found.spent.heading, bool(found.spent.rows)),
        ("launches", "Launches", bool(rows)),
        ("environment", "Measured on", True),
        ("caveats", "Caveats", bool(remarks)),
    ]
    return environment.get_template("report.html.j2").render(
        title=one_line(f"{header.model_name}: {_subject(study)}"),
        version=one_line(header.autofit_version),
        conclusion=found,
        tables=tables,
        sections=[(id_, name) for id_, name, is_there in sections if is_there],
        preset=preset,
        plots=drawn,
        left_out=left_out,
        plotly_gz=_packed_plotly() if drawn else "",
        rows=rows,
        common=common,
        commands={t.number: command_line(t.argv, t.env, port=PORT) for t in trials},
        measured_on=[*header_facts(header), *_more_facts(header)],
        caveats=remarks,
        launch_notes=grouped_notes(rows),
    )


def _subject(study: Study) -> str:
    result = study.result or {}
    if "because" in result:
        return "comparison"
    return "fit boundary" if result and "winner" not in result else "launch settings"


def _more_facts(header: StudyHeader) -> list[tuple[str, str]]:
    """Return what a repetition needs in addition to the facts of every output."""
    began = datetime.fromtimestamp(header.created_at, UTC)
    facts = [
        ("system", header.environment.system),
        ("begun", f"{began:%Y-%m-%d %H:%M} UTC"),
        ("autofit", f"{header.autofit_version}, seed {header.seed}"),
        ("command", shlex.join(header.argv)),
    ]
    return [(name, one_line(text)) for name, text in facts if text]


@cache
def _packed_plotly() -> str:
    """Return Plotly's script, gzipped, in base64."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - heavy, and an extra

    packed = gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode()


def plots(data: PlotData) -> tuple[list[Plot], list[NoPlot]]:
    """Return the plots that the study has data for, and those that are left out."""
    made = [_drawn(draw, data) for draw in _DRAWN]
    return (
        [plot for plot in made if isinstance(plot, Plot)],
        [plot for plot in made if isinstance(plot, NoPlot)],
    )


def _drawn(draw: Callable[[PlotData], Plot | NoPlot], data: PlotData) -> Plot | NoPlot:
    """Return a plot. If drawing fails, return the error as the reason why the plot is left out."""
    try:
        return draw(data)
    except Exception as error:  # noqa: BLE001 - also a fault in plotly
        title = draw.__name__.replace("_", " ").capitalize()
        return NoPlot(title, f"drawing it failed: {type(error).__name__}: {error}")
