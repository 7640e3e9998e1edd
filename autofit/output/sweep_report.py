"""The result of a sweep: the last screen, and Markdown for a CI system or a pull request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.text import Text

from autofit.output.report.markdown_report import code, escape, facts, table
from autofit.output.text.console import print_facts, print_table
from autofit.output.text.last_screen import FIGURES
from autofit.sweep.verdict import EntryVerdict, MetricVerdict, Verdict
from autofit.text_format import UNKNOWN, mib, number, one_line, times_text

_MARKS: dict[Verdict, str] = {
    "regression": "❌",
    "failing": "🟥",
    "improvement": "🟢",
    "same": "✅",
    "undecided": "❔",
    "new": "🆕",
    "skipped": "⏭️",
}
_ORDER = tuple(_MARKS)

_PLURALS = {"regression": "regressions", "improvement": "improvements"}
_METRIC_HEAD = ("metric", "verdict", "baseline", "now", "ratio", "p", "trend", "")
_BARS = "▁▂▃▄▅▆▇█"
# Nights that differ by less than this share of their median are drawn as a flat line.
_FLAT_SHARE = 0.1
_SCREEN_HEAD = ("entry", "verdict", "speed of requests", "what changed")
_MAX_ROWS = 11


def markdown_summary(verdicts: Sequence[EntryVerdict], *, sweep: str) -> str:
    """Return the verdicts as Markdown: a table of all entries, worst first, then the details."""
    worst_first = ranked(verdicts)
    parts = [f"# Sweep {escape(sweep)}: {headline(verdicts)}"]
    if worst_first:
        head = ("", "entry", "verdict", *(name for name, _, _ in FIGURES), "trend")
        parts.append(table(head, map(_row, worst_first)))
        parts.append(
            "Speeds are relative to the baseline: 0.94 means 0.94x as fast. Each interval is "
            "valid by itself, and p is corrected for the entry's other metrics. The trend has the "
            "seconds per request of the baseline's nights, then tonight's."
        )
    for one in worst_first:
        parts += _details(one)
    return "\n\n".join(parts) + "\n"


def ranked(verdicts: Sequence[EntryVerdict]) -> list[EntryVerdict]:
    """Return the verdicts, the worst first."""
    return sorted(verdicts, key=lambda one: _ORDER.index(one.verdict))


def headline(verdicts: Sequence[EntryVerdict]) -> str:
    """Return the number of entries of each verdict, the worst first."""
    counts = {name: sum(one.verdict == name for one in verdicts) for name in _ORDER}
    parts = [
        f"{count} {_PLURALS.get(name, name) if count > 1 else name}"
        for name, count in counts.items()
        if count
    ]
    return ", ".join(parts) or "no entries"


def sparkline(values: Sequence[float]) -> str:
    """Return values as bars; small differences stay small, so that noise draws no steps."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    span = max(high - low, _FLAT_SHARE * abs(median(known)))
    if span == 0:
        return _BARS[0] * len(known)
    start = (low + high - span) / 2
    heights = (int((value - start) / span * len(_BARS)) for value in known)
    return "".join(_BARS[min(max(height, 0), len(_BARS) - 1)] for height in heights)


def _row(verdict: EntryVerdict) -> tuple[str, ...]:
    by_name = {one.metric: one for one in verdict.metrics}
    found = [by_name.get(key) for _, key, _ in FIGURES]
    kinds = dict.fromkeys(one.verdict for one in (*verdict.regressions, *verdict.improvements))
    words = ", ".join(kinds).replace("_", " ") or verdict.verdict
    trend = by_name.get("request_s")
    return (
        _MARKS[verdict.verdict],
        verdict.name,
        words,
        *(_ratio(one) if one else "" for one in found),
        sparkline(trend.nights) if trend else "",
    )


def _details(verdict: EntryVerdict) -> Iterator[str]:
    yield f"## {_MARKS[verdict.verdict]} {escape(verdict.name)}"
    changed = [*verdict.regressions, *verdict.improvements]
    changed += [one for one in verdict.metrics if one.verdict in ("failing", "undecided")]
    listed = [(one.metric, one.message) for one in changed]
    listed += [("environment change", change) for change in verdict.environment_changes]
    listed += [("note", note) for note in verdict.notes]
    if listed:
        yield facts(listed)
    if verdict.metrics:
        yield table(_METRIC_HEAD, (_metric_row(one) for one in verdict.metrics))
    if verdict.reproduce and verdict.verdict not in ("same", "skipped"):
        yield code(verdict.reproduce, "sh")


def _metric_row(metric: MetricVerdict) -> tuple[str, ...]:
    is_memory = metric.metric.startswith("peak_mib")
    show = mib if is_memory else number
    has_figures = metric.kept is not None or metric.now is not None
    kept, now = (show(value) if has_figures else "" for value in (metric.kept, metric.now))
    return (
        metric.metric,
        metric.verdict.replace("_", " "),
        kept,
        now,
        _ratio(metric),
        f"{metric.p:.2g}" if metric.p is not None else "",
        sparkline(metric.nights),
        "" if metric.against == "baseline" else "against the reference, tonight",
    )


def _ratio(metric: MetricVerdict) -> str:
    if metric.ratio is None:
        return UNKNOWN if metric.kept is not None and metric.now is None else ""
    if metric.low is None or metric.high is None:
        return f"{metric.ratio:.3g}"
    return f"{metric.ratio:.3g} ({metric.low:.3g} to {metric.high:.3g})"


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
    rows = [_screen_row(verdict) for verdict in ranked(verdicts)]
    shown = rows if len(rows) <= _MAX_ROWS else rows[: _MAX_ROWS - 1]
    print_table(console, "", _SCREEN_HEAD, shown, cuts=True)
    if len(shown) < len(rows):
        console.print(Text(f"{len(rows) - len(shown)} more entries are in the summary"))
    changed = sum(bool(verdict.environment_changes) for verdict in verdicts)
    if changed:
        which = "1 entry" if changed == 1 else f"{changed} entries"
        text = f"the environment changed for {which}: see the summary"
        console.print(Text(text, style="yellow"))
    console.print()
    print_facts(console, [(name, one_line(text)) for name, text in links])


def _screen_row(verdict: EntryVerdict) -> tuple[str, ...]:
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
