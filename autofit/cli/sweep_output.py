"""Where a sweep tells what came of it: lines on stderr, its folder, and files for CI systems."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from autofit.cli.options.output_file import check_target, deliver
from autofit.output.junit import junit_xml
from autofit.output.report.sweep_summary import headline, markdown_summary
from autofit.sweep.night_folder import NightFolder
from autofit.sweep.verdict import EntryVerdict


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where reports go beside the sweep's folder, None for nowhere.

    With `has_document` stdout is for the document, and what people read goes to stderr.
    """

    junit: str | None
    summary: str | None
    updates_baseline: bool
    has_document: bool

    @property
    def leaves_stdout(self) -> bool:
        """Whether stdout is free for what people read."""
        return not self.has_document and "-" not in (self.junit, self.summary)

    def check(self) -> None:
        """See that reports can be written where they are wanted, before the night begins.

        Raises:
            UsageError: one cannot.
        """
        for target in (self.junit, self.summary):
            if target is not None:
                check_target(target)

    def write(
        self,
        verdicts: Sequence[EntryVerdict],
        document: Mapping[str, Any],
        night: NightFolder | None,
        *,
        sweep: str,
    ) -> None:
        """Write all reports, into the folder of the night too where there is one.

        Raises:
            AutofitError: one cannot be written.
        """
        junit = junit_xml(verdicts, sweep=sweep, hostname=platform.node() or "localhost")
        summary = markdown_summary(verdicts, sweep=sweep)
        if night is not None:
            night.write_output("junit.xml", junit)
            night.write_output("summary.md", summary)
            night.write_output("verdicts.json", json.dumps(document, indent=1) + "\n")
        for text, target in ((junit, self.junit), (summary, self.summary)):
            if target is not None:
                deliver(text, target)


def tell_verdicts(verdicts: Sequence[EntryVerdict], *, sweep: str, on_stdout: bool) -> None:
    """Tell what changed, entry by entry, on stdout or stderr."""
    tell(f"sweep {sweep}: {headline(verdicts)}", on_stdout=on_stdout)
    for line in (line for verdict in verdicts for line in _lines(verdict)):
        tell(line, on_stdout=on_stdout)


def _lines(verdict: EntryVerdict) -> Iterator[str]:
    yield f"{verdict.name}: {verdict.verdict}"
    if verdict.verdict == "skipped":
        yield from (f"  {note}" for note in verdict.notes)
    for metric in verdict.metrics:
        if metric.is_regression or metric.is_improvement or metric.verdict == "failing":
            yield f"  {metric.verdict.replace('_', ' ')}: {metric.metric}: {metric.words}"
    yield from (f"  changed beside it: {change}" for change in verdict.environment_changes)


def tell(text: str, *, on_stdout: bool = False) -> None:
    """Say something, beside the results where it is none."""
    click.echo(text, err=not on_stdout)
