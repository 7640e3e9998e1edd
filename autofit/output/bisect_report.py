"""The result of a bisection: the last screen, JUnit XML and Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from autofit.output.junit import junit_xml
from autofit.output.report.markdown_report import escape, facts, table
from autofit.output.text.console import print_facts, print_table
from autofit.output.text.last_screen import FIGURES, figure_text
from autofit.sweep.verdict import EntryVerdict, MetricVerdict, RegressionKind
from autofit.text_format import duration, one_line

_KINDS: Mapping[str, RegressionKind] = {
    "memory": "more_memory",
    "failure": "new_failure",
    "answers": "output_changed",
}
_MAX_CHANGES = 3
_HEAD = ("build", "", *(name for name, _, _ in FIGURES))


def print_bisection(result: Mapping[str, Any], console: Console) -> None:
    """Print the result of a bisection in at most 20 lines."""
    headline, *others = result["words"]
    title = (
        f"{result['model']}, {result['workload']}, {result['good']} to {result['bad']} "
        f"({len(result['builds'])} builds)"
    )
    console.print()
    console.print(Text(one_line(title), style="dim"))
    console.print(Text(one_line(headline), style="bold"))
    for message in others:
        console.print(Text(one_line(message)))
    rows = list(_rows(result))
    if rows:
        console.print()
        print_table(console, "", _HEAD, rows)
    console.print()
    print_facts(console, list(_facts(result)))


def bisect_summary(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown, for the step summary of a CI system."""
    headline, *others = (escape(one_line(message)) for message in result["words"])
    rows = list(_rows(result))
    parts = [f"# {headline}", *others, facts(_facts(result))]
    if rows:
        parts.append(table(_HEAD, rows))
    return "\n\n".join(parts) + "\n"


def bisect_junit(result: Mapping[str, Any]) -> str:
    """Return the result as JUnit XML: a failed case for each change."""
    name = result["quantity"] or "difference"
    cases = tuple(
        MetricVerdict(
            metric=f"{name} {change['first_bad']}",
            verdict=_KINDS.get(name, "slower"),
            message=message,
        )
        for change, message in zip(result["changes"], result["words"], strict=False)
    )
    verdict = EntryVerdict(
        name=result["preset"],
        verdict="regression" if cases else "skipped",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        metrics=cases,
        notes=() if cases else tuple(result["words"]),
        seconds=result["seconds"],
    )
    return junit_xml([verdict], sweep="bisect")


def _rows(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the builds around each change, and both ends, in order."""
    changes = result["changes"][:_MAX_CHANGES]
    bad = {change["first_bad"] for change in changes}
    shown = bad | {change["last_good"] for change in changes} | {result["good"], result["bad"]}
    for build in result["builds"]:
        if build["name"] in shown:
            estimates = build["estimates"]
            mark = "first bad" if build["name"] in bad else ""
            cells = (figure_text(estimates.get(key), unit) for _, key, unit in FIGURES)
            yield (one_line(build["name"]), mark, *cells)


def _facts(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    launched = sum(build["launches"] > 0 for build in result["builds"])
    yield (
        "effort",
        f"{result['launches']} launches of {launched} builds in {duration(result['seconds'])}",
    )
    if result["skipped"]:
        yield "skipped", one_line(", ".join(result["skipped"]))
    if result["is_out_of_time"]:
        again = f"--study {shlex.quote(result['study'])} --resume --budget 4h"
        yield "budget", one_line(f"used up; continue with the same command and {again}")
    yield "study", one_line(result["study"])
