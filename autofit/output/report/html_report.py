"""The report as one HTML file that needs no network; it needs the extra `report`.

Plotly's script is by far the largest part. It is embedded compressed, and the browser unpacks
it. Without it the page still has everything as text and tables.
"""

from __future__ import annotations

import base64
import gzip
import shlex
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from autofit.errors import AutofitError
from autofit.output.report.plots.gallery import plots
from autofit.output.report.plots.plot_data import PlotData
from autofit.output.text.best_so_far_text import study_conclusion
from autofit.output.text.compare_screen import COMPARISON_HEAD, comparison_rows
from autofit.output.text.conclusion import PORT, caveats
from autofit.output.text.result_table import (
    BOUNDARY_HEAD,
    BOUNDARY_TITLE,
    CLIFF_HEAD,
    FRONT_HEAD,
    FRONT_TITLE,
    METRIC_HEAD,
    SPENT_HEAD,
    SPENT_TITLE,
)
from autofit.output.text.study_text import header_facts
from autofit.output.text.trial_row import command_line, grouped_notes, trial_rows
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.text_format import one_line

_TEMPLATES = Path(__file__).parent / "templates"


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
    tables = [
        table
        for table in (
            (
                "Both sides",
                COMPARISON_HEAD,
                [tuple(map(one_line, row)) for row in comparison_rows(study.result or {})]
                if is_comparison
                else [],
            ),
            (_title(BOUNDARY_TITLE), BOUNDARY_HEAD, found.boundary),
            ("Cliffs", CLIFF_HEAD, found.cliffs),
            (_title(FRONT_TITLE), FRONT_HEAD, found.front),
        )
        if table[2]
    ]
    remarks = caveats(study)
    sections = [
        ("tables", "Both sides" if is_comparison else "Boundary", bool(tables)),
        ("plots", "Plots", bool(drawn)),
        ("spent", _title(SPENT_TITLE), bool(found.spent)),
        ("launches", "Launches", bool(rows)),
        ("environment", "Measured on", True),
        ("caveats", "Caveats", bool(remarks)),
    ]
    return environment.get_template("report.html.j2").render(
        title=one_line(f"{header.model_name}: {_subject(study)}"),
        version=one_line(header.autofit_version),
        conclusion=found,
        metric_head=METRIC_HEAD,
        tables=tables,
        sections=[(id_, name) for id_, name, is_there in sections if is_there],
        preset=preset,
        plots=drawn,
        left_out=left_out,
        plotly_gz=_packed_plotly() if drawn else "",
        rows=rows,
        spent_head=SPENT_HEAD,
        spent_title=_title(SPENT_TITLE),
        common=common,
        commands={t.number: command_line(t.argv, t.env, port=PORT) for t in trials},
        measured_on=[*header_facts(header), *_more_facts(header)],
        caveats=remarks,
        launch_notes=grouped_notes(rows),
    )


def _title(text: str) -> str:
    return text[:1].upper() + text[1:]


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
