"""JUnit XML of a sweep: valid for Ant and Jenkins with any names, a case for each metric."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import xmlschema
from hypothesis import given, settings
from hypothesis import strategies as st
from junitparser import Failure, JUnitXml, Skipped
from output.tune_sample import HOSTILE
from sweep.night_sample import REPRODUCE, failed, kept, launches, night
from sweep.record_strategy import records

from autofit.output.junit import junit_xml
from autofit.output.sweep_report import markdown_summary
from autofit.sweep.baseline_file import Baseline
from autofit.sweep.entry_record import EnvironmentSnapshot
from autofit.sweep.judge import judge_entry
from autofit.sweep.verdict import EntryVerdict, MetricVerdict, sweep_document

SCHEMAS = {
    path.stem: xmlschema.XMLSchema(path)
    for path in (Path(__file__).parents[1] / "data" / "junit").glob("*.xsd")
}
EVIL = "]]>&<b a='\"'>\x00\x1b[31m\r\nline\u2028two \ud800\ufffe|`${x}`"


def check(text: str) -> JUnitXml:
    """Return the document after both schemas accepted it."""
    assert set(SCHEMAS) == {"ant", "jenkins"}
    for schema in SCHEMAS.values():
        schema.validate(text)
    return JUnitXml.fromstring(text.encode())


def some_verdicts() -> list[EntryVerdict]:
    """Return one entry of each kind."""
    return [
        judge_entry(kept(), night(20, name="good")),
        judge_entry(kept(), night(20, launches=launches(slowdown=1.1, seed=20), name="slow")),
        judge_entry(kept(), failed(name="crashed")),
        judge_entry(None, night(20, name="fresh")),
        judge_entry(kept(), failed(status="missing_hardware", name="absent")),
    ]


def test_every_kind_of_entry_is_valid():
    """Both schemas accept the document, and the counts are those of the cases."""
    document = check(junit_xml(some_verdicts(), sweep="nightly", hostname="a-host"))

    suites = {suite.name: suite for suite in document}
    assert list(suites) == ["good", "slow", "crashed", "fresh", "absent"]
    assert (suites["good"].failures, suites["good"].skipped) == (0, 0)
    assert suites["good"].tests == 9
    assert suites["slow"].failures == 4
    assert (suites["crashed"].tests, suites["crashed"].failures) == (1, 1)
    assert suites["fresh"].failures == 0
    assert (suites["absent"].tests, suites["absent"].skipped) == (1, 1)
    assert suites["slow"].time == 312.5
    assert suites["slow"].timestamp == "2026-11-21T02:00:00"
    assert suites["slow"].hostname == "a-host"


def test_a_failure_has_the_numbers_and_the_command():
    """It has the change, its p-value, changes of the environment, and the command."""
    around = replace(night().environment, driver="590.2")
    record = night(20, launches=launches(slowdown=1.1, seed=20), environment=around)
    (suite,) = check(junit_xml([judge_entry(kept(), record)], sweep="nightly"))
    case = next(case for case in suite if case.name == "request_s")
    (result,) = case.result

    assert isinstance(result, Failure)
    assert result.type == "slower"
    assert case.classname == "nightly.qwen"
    assert "x as fast" in result.message
    assert f"to reproduce: {REPRODUCE}" in result.text
    assert "p = " in result.text
    assert "3.0%" in result.text
    assert "driver: 580.1, now 590.2" in result.text


def test_unknown_results_are_skipped():
    """Missing hardware, known failures and metrics without a baseline do not pass."""
    before = replace(kept(), record=failed())
    verdicts = [
        judge_entry(kept(), failed(status="missing_hardware")),
        judge_entry(before, failed()),
        judge_entry(None, night(20)),
    ]
    document = list(check(junit_xml(verdicts, sweep="nightly")))

    results = [[case.result for case in suite] for suite in document]
    assert isinstance(results[0][0][0], Skipped)
    assert "not on this machine" in results[0][0][0].message
    assert isinstance(results[1][0][0], Skipped)
    assert sum(bool(result) for result in results[2]) == 8


def test_a_sweep_of_nothing_is_valid():
    """A shard without entries has a document."""
    assert len(check(junit_xml([], sweep="nightly"))) == 0


@pytest.mark.parametrize("text", [EVIL, HOSTILE, "", " ", "\n", "a.b", "x" * 5000])
def test_hostile_text_breaks_nothing(text):
    """Markup, control characters and empty texts leave the document valid."""
    document = check(junit_xml([hostile_verdict(text)], sweep=text, hostname=text))

    (suite,) = document
    assert suite.tests == 2
    assert suite.failures == 1
    assert not any(ord(c) < 32 or c == "\u2028" for c in suite.name)


@settings(max_examples=40)
@given(st.text(st.characters(codec=None), max_size=20), st.floats(0, 1e7))
def test_any_text_is_valid(text, seconds):
    """Any name, message and command leaves the document valid."""
    verdict = replace(hostile_verdict(text), seconds=seconds)

    check(junit_xml([verdict, verdict], sweep=text, hostname=text))


@pytest.mark.timeout(300)
@settings(max_examples=60)
@given(records, records, st.integers(0, 2))
def test_any_two_nights_can_be_judged_and_reported(before, now, kept_nights):
    """Every record has a verdict with valid JSON, XML and Markdown."""
    now = replace(now, date=night().date)
    dates = ("2026-01-01", "2026-01-02")[:kept_nights]
    baseline = Baseline().updated(replace(before, date=date, name=now.name) for date in dates)

    verdict = judge_entry(baseline.entries.get(now.name), now)

    json.dumps(sweep_document([verdict]), allow_nan=False)
    check(junit_xml([verdict], sweep="nightly"))
    assert markdown_summary([verdict], sweep="nightly").startswith("# Sweep nightly: 1 ")


def test_class_of_a_case_has_no_dots_of_its_name():
    """Readers take the part before the last dot for a package."""
    (suite,) = check(junit_xml([judge_entry(None, night(name="qwen3.6"))], sweep="nightly"))

    assert suite.name == "qwen3.6"
    assert {case.classname for case in suite} == {"nightly.qwen3_6"}


def hostile_verdict(text: str) -> EntryVerdict:
    """Return a verdict with the same text everywhere."""
    around = EnvironmentSnapshot(driver="1", remarks=(text,))
    record = night(20, name=text, notes=(text,), reproduce=text, environment=around)
    judged = judge_entry(None, record)
    metrics = (
        MetricVerdict(metric=text, verdict="output_changed", message=text),
        MetricVerdict(metric=text, verdict="unknown", message=text),
    )
    return replace(judged, verdict="regression", metrics=metrics)
