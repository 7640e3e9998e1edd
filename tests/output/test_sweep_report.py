"""The Markdown summary of a sweep: what changed on top, and no text that breaks a table."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from output.test_junit import EVIL, hostile_verdict, some_verdicts
from output.tune_sample import HOSTILE
from sweep.night_sample import REPRODUCE, kept, launches, night

from autofit.output.sweep_report import headline, markdown_summary, sparkline
from autofit.sweep.judge import judge_entry


def cells(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def prose(text: str) -> str:
    """Return a document without its blocks of code."""
    return re.sub(r"^(```+)sh\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)


def tables(text: str) -> list[list[list[str]]]:
    """Return all tables of a document as lines of cells."""
    blocks = re.findall(r"(?:^\|.*\n)+", prose(text), flags=re.MULTILINE)
    return [[cells(line) for line in block.splitlines()] for block in blocks]


def test_headline_counts_verdicts_worst_first():
    """The headline has the number of entries of each verdict."""
    verdicts = some_verdicts()

    assert headline(verdicts) == "2 regressions, 1 same, 1 new, 1 skipped"
    assert headline([]) == "no entries"
    assert markdown_summary([], sweep="nightly") == "# Sweep nightly: no entries\n"


def test_regressions_are_first_with_numbers_and_command():
    """The first table has a line for each entry, and each regression its details."""
    text = markdown_summary(some_verdicts(), sweep="nightly")
    overview = tables(text)[0]

    assert [line[1] for line in overview[2:]] == ["slow", "crashed", "good", "fresh", "absent"]
    assert overview[2][2] == "slower"
    assert overview[2][3].startswith("0.9")
    assert overview[3][2] == "new failure"
    assert text.count(f"```sh\n{REPRODUCE}\n```") >= 2
    assert "not on this machine" in text


def test_the_trend_is_drawn_over_the_kept_nights():
    """Five equal nights and a slow one are a flat line with a step."""
    slow = night(20, launches=launches(slowdown=1.2, seed=20))
    overview = tables(markdown_summary([judge_entry(kept(5), slow)], sweep="nightly"))[0]

    trend = overview[2][-1]
    assert len(trend) == 6
    assert len(set(trend[:5])) == 1
    assert trend[5] > trend[0]


def test_details_have_each_metric():
    """Each metric has both values, ratio with interval, p and trend."""
    slow = night(20, launches=launches(slowdown=1.1, seed=20))
    detail = tables(markdown_summary([judge_entry(kept(), slow)], sweep="nightly"))[1]
    by_name = {line[0]: line for line in detail[2:]}

    assert by_name["request_s"][1] == "slower"
    assert by_name["request_s"][2].startswith("3.1")
    assert by_name["request_s"][3].startswith("3.4")
    assert by_name["peak_mib CUDA0"][2] == "10.7 GiB"
    assert {len(line) for line in detail} == {8}


def test_reference_is_named_if_it_decides():
    """A number of the reference is not in the baseline, so the row says it."""
    both = launches(seed=3)
    verdict = judge_entry(kept(), night(20, launches=both, reference=both))

    assert "against the reference" in markdown_summary([verdict], sweep="nightly")


@pytest.mark.parametrize("text", [EVIL, HOSTILE, "a|b", "<script>x</script>", "# not a heading"])
def test_hostile_text_breaks_no_table_and_no_block(text):
    """Pipes, markup and control characters become plain text."""
    shown = markdown_summary([hostile_verdict(text)], sweep=text)

    for table in tables(shown):
        assert len({len(line) for line in table}) == 1
    headings = [line[:3] for line in prose(shown).splitlines() if line.startswith("#")]
    assert headings == ["# S", "## "]
    assert not re.search(r"(?<!\\)<", prose(shown))
    assert not any(ord(c) < 32 and c != "\n" for c in shown)
    assert shown.encode("utf-8")


@given(st.text(st.characters(codec=None), max_size=20))
def test_any_text_keeps_the_shape(text):
    """With any name or message, tables stay tables."""
    verdict = hostile_verdict(text)
    shown = markdown_summary([verdict, replace(verdict, verdict="same")], sweep=text)

    assert [{len(line) for line in table} for table in tables(shown)] == [{8}] * 3


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=40))
def test_a_sparkline_has_a_bar_for_each_value_in_their_order(values):
    """A larger value is never drawn lower."""
    bars = sparkline(values)

    assert len(bars) == len(values)
    ordered = sorted(zip(values, bars, strict=True))
    assert [bar for _, bar in ordered] == sorted(bar for _, bar in ordered)


def test_sparkline_of_noise_is_flat():
    """Values within 1% have at most two heights, values 20% apart have all."""
    noise = sparkline([1.00, 1.01, 0.99, 1.0, 1.01])

    assert len(set(noise)) <= 2
    assert set(sparkline([1.0, 1.2])) == {"▁", "█"}
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([float("nan"), 1.0]) == sparkline([1.0])
