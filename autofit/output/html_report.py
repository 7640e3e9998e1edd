"""The report as one HTML file that needs no network; made with the extra `report`."""

from __future__ import annotations

from pathlib import Path

from autofit.errors import AutofitError
from autofit.output.answer import BOUNDARY_HEAD, CLIFF_HEAD, METRIC_HEAD, answer
from autofit.output.plot import plots
from autofit.output.show import header_facts
from autofit.output.text import one_line
from autofit.output.trial_row import command_line, grouped_notes, trial_rows
from autofit.results.study import Study

_TEMPLATES = Path(__file__).parent / "templates"


def html_report(study: Study, *, preset: str = "", port: int = 8080) -> str:
    """The report of a study; `preset` is the text of the winner's preset, to be copied.

    Raises:
        AutofitError: jinja2 or plotly are not installed.
    """
    try:
        # Heavy, and an extra.
        import jinja2  # noqa: PLC0415
        from plotly.offline import get_plotlyjs  # noqa: PLC0415
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
    trials = study.trials()
    header = study.header
    found = answer(study.result)
    rows, common = trial_rows(trials, header.workload)
    winner = (study.result or {}).get("winner") or {}
    command = (
        command_line(winner["argv"], winner.get("env") or {}, port=port)
        if winner.get("argv")
        else ""
    )
    figures = plots(trials, header.workload, header.objective, study.result)
    return environment.get_template("report.html.j2").render(
        title=one_line(header.model_name),
        header=header,
        answer=found,
        tables=(
            ("Speed", METRIC_HEAD, found.metrics),
            ("Fit boundary (host expert layers)", BOUNDARY_HEAD, found.boundary),
            ("Cliffs", CLIFF_HEAD, found.cliffs),
        ),
        command=command,
        preset=preset,
        plots=figures,
        plotly_js=get_plotlyjs() if figures else "",
        rows=rows,
        common=common,
        commands={t.number: command_line(t.argv, t.env, port=port) for t in trials},
        measured_on=header_facts(header),
        notices=[*found.notes, *grouped_notes(rows), *study.notices],
    )
