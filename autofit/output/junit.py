"""A sweep as JUnit XML for CI systems: a suite for each entry, a case for each metric.

The document is valid against the schemas of both Ant and Jenkins, which differ. Ant requires
properties, output and a package, and allows no counts at the root.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from junitparser import (
    Attr,
    Failure,
    IntAttr,
    JUnitXml,
    Properties,
    Skipped,
    SystemErr,
    SystemOut,
    TestCase,
    TestSuite,
)

from autofit.sweep.verdict import EntryVerdict, MetricVerdict
from autofit.text_format import one_line

_UNNAMED = "unnamed"


class _Suite(TestSuite):
    """A test suite with the additional attributes that Ant's schema requires."""

    __test__ = False
    package = Attr()
    id = IntAttr()


def junit_xml(verdicts: Sequence[EntryVerdict], *, sweep: str, hostname: str = "localhost") -> str:
    """Return the verdicts as an XML document.

    The case of a regression fails, and its text has the command that reproduces it. Metrics that
    could not be compared, known failures and entries that did not run are skipped.
    """
    root = JUnitXml()
    for index, verdict in enumerate(verdicts):
        root.append(_suite(verdict, index, _name(sweep), _name(hostname)))
    file = io.BytesIO()
    root.write(file)
    return file.getvalue().decode("utf-8") + "\n"


def _suite(verdict: EntryVerdict, index: int, package: str, hostname: str) -> TestSuite:
    suite = _Suite(_name(verdict.name))
    suite.package, suite.id, suite.hostname = package, index, hostname
    suite.timestamp = _timestamp(verdict.date)
    _fill(suite, verdict, package)
    # The time is that of the entry; its metrics have none.
    suite.time = round(verdict.seconds, 3)
    return suite


def _fill(suite: TestSuite, verdict: EntryVerdict, package: str) -> None:
    suite.append(Properties())
    for name, value in _facts(verdict):
        suite.add_property(name, one_line(value))
    suite.add_testcases(list(_cases(verdict, package)))
    suite.append(SystemOut("\n".join(_lines(verdict))))
    suite.append(SystemErr(""))


def _facts(verdict: EntryVerdict) -> Iterator[tuple[str, str]]:
    yield "verdict", verdict.verdict
    yield from (("environment change", change) for change in verdict.environment_changes)
    yield from (("note", note) for note in verdict.notes)
    if verdict.reproduce:
        yield "reproduce", verdict.reproduce


def _cases(verdict: EntryVerdict, package: str) -> Iterator[TestCase]:
    # Readers take the part before the last dot for a package.
    classname = f"{package}.{_name(verdict.name).replace('.', '_')}"
    if not verdict.metrics:
        case = TestCase("outcome", classname, 0.0)
        case.result = Skipped(one_line("; ".join(verdict.notes) or verdict.verdict))
        yield case
    for metric in verdict.metrics:
        case = TestCase(_name(metric.metric), classname, 0.0)
        if metric.is_regression:
            failure = Failure(one_line(metric.message), metric.verdict)
            failure.text = "\n".join(_failure_lines(metric, verdict))
            case.result = failure
        elif metric.verdict in ("unknown", "failing"):
            case.result = Skipped(one_line(metric.message))
        yield case


def _failure_lines(metric: MetricVerdict, verdict: EntryVerdict) -> Iterator[str]:
    yield f"{one_line(verdict.name)}, {one_line(metric.metric)}: {one_line(metric.message)}"
    if metric.p is not None:
        yield f"p = {metric.p:.2g}; a change counts from {metric.threshold:.1%} of the time"
    elif metric.threshold is not None:
        yield f"a change counts from {metric.threshold:g}"
    for change in verdict.environment_changes:
        yield f"changed in the environment: {one_line(change)}"
    for note in verdict.notes:
        yield f"note: {one_line(note)}"
    if verdict.reproduce:
        yield f"to reproduce: {one_line(verdict.reproduce)}"


def _lines(verdict: EntryVerdict) -> Iterator[str]:
    for metric in verdict.metrics:
        yield f"{metric.verdict}: {one_line(metric.metric)}: {one_line(metric.message)}"


def _name(text: str) -> str:
    return one_line(text).strip() or _UNNAMED


def _timestamp(date: str) -> str:
    """Return the date in UTC without its zone, which Ant's schema does not allow."""
    moment = datetime.fromisoformat(date)
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    return moment.replace(tzinfo=None).isoformat(timespec="seconds")
