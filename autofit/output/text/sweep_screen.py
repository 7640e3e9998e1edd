"""The last screen of a sweep: at most 20 lines of 80 columns, the worst entries first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from autofit.output.report.sweep_summary import headline, ranked
from autofit.output.text.console import print_facts, print_table
from autofit.sweep.verdict import EntryVerdict
from autofit.text_format import one_line, times_text

_HEAD = ("entry", "verdict", "speed of requests", "what changed")
_MAX_ROWS = 11


def print_sweep_result(
    verdicts: Sequence[EntryVerdict],
    console: Console,
    *,
    sweep: str,
    links: Iterable[tuple[str, str]],
) -> None:
    """Print the verdicts on a sweep, and below them `links`, such as the paths of reports."""
    console.print()
    console.print(Text(one_line(f"sweep {sweep}: {headline(verdicts)}"), style="bold"))
    rows = [_row(verdict) for verdict in ranked(verdicts)]
    shown = rows if len(rows) <= _MAX_ROWS else rows[: _MAX_ROWS - 1]
    print_table(console, "", _HEAD, shown, cuts=True)
    if len(shown) < len(rows):
        console.print(Text(f"{len(rows) - len(shown)} more entries are in the summary"))
    changed = sum(bool(verdict.environment_changes) for verdict in verdicts)
    if changed:
        which = "1 entry" if changed == 1 else f"{changed} entries"
        text = f"the environment changed for {which}: see the summary"
        console.print(Text(text, style="yellow"))
    console.print()
    print_facts(console, [(name, one_line(text)) for name, text in links])


def _row(verdict: EntryVerdict) -> tuple[str, ...]:
    speed = next((one for one in verdict.metrics if one.metric == "request_s"), None)
    ratio = ""
    if speed is not None and speed.ratio is not None:
        ratio = times_text(speed.ratio, speed.low, speed.high)
    return (one_line(verdict.name), verdict.verdict, ratio, one_line(_change(verdict)))


def _change(verdict: EntryVerdict) -> str:
    """Return the worst change of an entry, or the reason why it was not measured."""
    failing = [one for one in verdict.metrics if one.verdict == "failing"]
    changes = [*verdict.regressions, *failing, *verdict.improvements]
    if not changes:
        return verdict.notes[0] if verdict.verdict == "skipped" and verdict.notes else ""
    more = f" (and {len(changes) - 1} more)" if len(changes) > 1 else ""
    first = changes[0]
    return f"{first.metric}: {first.message}{more}"
