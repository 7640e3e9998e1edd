"""`autofit report`: write the report of a study as Markdown, or as one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from autofit.cli.options.arguments import open_study, print_damage, study_argument
from autofit.cli.options.paths import check_target, deliver
from autofit.cli.say import say
from autofit.errors import AutofitError

if TYPE_CHECKING:
    from autofit.study.study_folder import Study


@click.command("report")
@study_argument
@click.option(
    "--html", metavar="FILE", help="Write one HTML file instead of printing; - is stdout."
)
def command(study: str, html: str | None) -> None:
    """Write the report of STUDY as Markdown to its report.md, and print it on stdout.

    STUDY is the folder of a study, its name in results/, or the URL of a shared tune's storage.
    """
    from autofit.output.report.html_report import html_report
    from autofit.output.report.markdown_report import markdown_report
    from autofit.presets.preset_source import written_preset
    from autofit.text_format import without_control

    if html is not None:
        check_target(html)
    opened = open_study(study)
    preset = written_preset(opened)
    text = markdown_report(opened, preset=preset)
    _write_markdown(opened, text)
    if html is None:
        deliver(text, "-")
        return
    deliver(without_control(html_report(opened, preset=preset)), html)
    print_damage(opened)
    if html != "-":
        say(f"wrote {html}", err=True)


def _write_markdown(study: Study, text: str) -> None:
    """Write report.md into the study's folder, or print a notice if the folder is read-only."""
    try:
        study.write_output("report.md", text)
    except AutofitError as error:
        say(f"notice: report.md was not written: {error.message}", err=True)
