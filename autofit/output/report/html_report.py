"""The report as one HTML file that needs no network; made with the extra `report`.

Plotly's script is by far the largest part, so it is embedded compressed and unpacked by the
browser; without it the page still says everything in words and tables.
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
from autofit.output.text.caveat import caveats
from autofit.output.text.comparison_text import COMPARISON_HEAD, comparison_rows
from autofit.output.text.conclusion import (
    BOUNDARY_HEAD,
    CLIFF_HEAD,
    FRONT_HEAD,
    METRIC_HEAD,
    PORT,
    answer,
)
from autofit.output.text.spending_table import SPENT_HEAD, SPENT_TITLE
from autofit.output.text.study_text import header_facts
from autofit.output.text.trial_row import command_line, grouped_notes, trial_rows
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.text_format import one_line

_TEMPLATES = Path(__file__).parent / "templates"


def html_report(study: Study, *, preset: str = "") -> str:
    """The report of a study; `preset` is the text of the winner's preset, to be copied.

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
            "pip install 'autofit[report]'; the Markdown report needs nothing",
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    trials, header = study.trials(), study.header
    found = answer(study.result, study.path)
    rows, common = trial_rows(trials, header.workload)
    drawn, left_out = plots(PlotData(trials, header.workload, header.objective, study.result))
    is_comparison = "because" in (study.result or {})
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
            ("Fit boundary (host expert layers)", BOUNDARY_HEAD, found.boundary),
            ("Cliffs", CLIFF_HEAD, found.cliffs),
            ("Beaten by nothing in all of", FRONT_HEAD, found.front),
        )
        if table[2]
    ]
    remarks = caveats(study)
    sections = [
        ("edges", "Both sides" if is_comparison else "Boundary", bool(tables)),
        ("plots", "Plots", bool(drawn)),
        ("spent", "Spent", bool(found.spent)),
        ("launches", "Launches", bool(rows)),
        ("environment", "Measured on", True),
        ("caveats", "Caveats", bool(remarks)),
    ]
    return environment.get_template("report.html.j2").render(
        title=one_line(f"{header.model_name}: {_subject(study)}"),
        version=one_line(header.autofit_version),
        answer=found,
        metric_head=METRIC_HEAD,
        tables=tables,
        sections=[(id_, name) for id_, name, is_there in sections if is_there],
        preset=preset,
        plots=drawn,
        left_out=left_out,
        plotly_gz=_packed_plotly() if drawn else "",
        rows=rows,
        spent_head=SPENT_HEAD,
        spent_title=SPENT_TITLE.capitalize(),
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
    """What else a repetition needs, beside what every output tells."""
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
    """Plotly's script, gzipped, in base64."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - heavy, and an extra

    packed = gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode()
