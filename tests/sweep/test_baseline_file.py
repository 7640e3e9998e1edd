"""Baselines: their nights and levels, and their file when it is read, written or damaged."""

from __future__ import annotations

import json
from dataclasses import replace

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep.night_sample import WINNER, answer, failed, kept, launches, night
from sweep.record_strategy import records

from autofit.errors import AutofitError, UsageError
from autofit.quality.recorded_answer import RecordedAnswer
from autofit.runtime.server.client import TokenChoice
from autofit.sweep.baseline_entry import BaselineEntry, Night
from autofit.sweep.baseline_file import Baseline
from autofit.sweep.entry_record import (
    LaunchValues,
)
from autofit.sweep.judge import judge_entry
from autofit.sweep.verdict import Thresholds


@hypothesis.settings(max_examples=40)
@given(st.lists(records, max_size=2))
def test_baseline_reads_back_as_it_was_written(nights):
    """Names, numbers and answers are the same after the file, lone surrogates included."""
    baseline = Baseline().updated(nights)
    text = baseline.dump().encode("utf-8").decode("utf-8")

    assert Baseline.parse(text, "here") == baseline
    assert Baseline.parse(text, "here").dump() == text


def test_another_night_changes_few_lines():
    """Keys are sorted and short values are on one line, so a night adds lines of its own."""
    before = Baseline({"qwen": kept(3)})
    lines = before.dump().splitlines()
    after = before.updated([night(4, launches=launches(seed=3))]).dump().splitlines()

    assert len([line for line in after if line not in lines]) < 20
    assert max(map(len, lines)) < 2500
    assert len(before.dump()) < 8000
    assert '"peak_mib": {"CUDA0": 11000.0, "host": 2000.0}' in before.dump()
    assert "e-0" not in before.dump()


def test_answers_are_shortened_to_what_a_comparison_needs():
    """A position has its three likeliest tokens."""
    long = RecordedAnswer("x", (5,), (TokenChoice(5, -0.1, {t: -t / 10 for t in range(1, 11)}),))

    found = Baseline().updated([night(1, answers=(long,))]).entries["qwen"].record.answers[0]

    assert set(found.choices[0].top) == {1, 2, 3}
    assert found.choices[0].logprob == -0.1


def test_near_tie_is_rounding_after_the_file():
    """The file has the second likeliest token, which shows that it was nearly as likely."""

    def near(first, second):
        top = {first: -0.70, second: -0.72, 3: -4.0, 4: -5.0}
        return (RecordedAnswer(str(first), (first,), (TokenChoice(first, -0.70, top),)),)

    before = Baseline().updated([night(1, answers=near(1, 2))]).entries["qwen"]
    verdict = judge_entry(before, night(20, answers=near(2, 1)))

    assert {one.metric: one.verdict for one in verdict.metrics}["answers"] == "same"


def test_equal_nights_are_one_level():
    """The last thirty nights are kept."""
    found = kept(35)

    assert len(found.nights) == 30
    assert len(found.current_nights) == 30
    assert [len(level) for level in found.values_by_level("request_s")] == [30]


def test_night_that_is_added_twice_counts_once():
    """A sweep that is resumed after its end adds nothing to the baseline."""
    baseline = Baseline({"qwen": kept(3)})
    again = night(3, launches=launches(seed=3))

    assert baseline.updated([again]) == baseline


def test_accepted_change_begins_a_level():
    """After a regression is accepted, a night like it is the same, and one like before better."""
    baseline = Baseline({"qwen": kept(4)})
    slow = night(5, launches=launches(slowdown=1.1, seed=5))

    accepted = baseline.updated([slow]).entries["qwen"]

    assert [len(level) for level in accepted.values_by_level("request_s")] == [4, 1]
    assert (
        judge_entry(accepted, night(6, launches=launches(slowdown=1.1, seed=6))).verdict == "same"
    )
    assert judge_entry(accepted, night(7)).verdict == "improvement"


def test_unusual_night_does_not_hide_the_nights_before_it():
    """It is alone on its level once the next night is like the others."""
    off = night(5, launches=launches(slowdown=0.9, seed=5))
    back = night(6)

    found = Baseline({"qwen": kept(4)}).updated([off]).updated([back]).entries["qwen"]

    assert [one.level for one in found.nights] == [0, 0, 0, 0, 1, 0]
    assert len(found.current_nights) == 5
    assert judge_entry(found, night(7)).verdict == "same"


def test_slow_drift_is_found():
    """A percent a night, accepted every night, is a regression before it is eight percent."""
    baseline = Baseline({"qwen": kept(5)})
    for step in range(1, 9):
        record = night(5 + step, launches=launches(slowdown=1.01**step, noise=0.003, seed=step))
        if judge_entry(baseline.entries["qwen"], record).verdict == "regression":
            break
        baseline = baseline.updated([record])
    else:
        pytest.fail("eight nights of a percent each had no regression")

    assert step > 2


def test_other_settings_begin_a_level():
    """Another winner, or another task, is compared with later nights only."""
    for changes in (
        {"winner": replace(WINNER, digest="other")},
        {"environment": replace(night().environment, task="longer")},
    ):
        found = Baseline({"qwen": kept(4)}).updated([night(5, **changes)]).entries["qwen"]

        assert len(found.current_nights) == 1


def test_failure_keeps_the_nights_and_skipped_entries_keep_all():
    """A crash replaces the record but not its settings; missing hardware replaces nothing."""
    before = kept(3)
    baseline = Baseline({"qwen": before})

    crashed = baseline.updated([failed(winner=None)]).entries["qwen"]

    assert crashed == BaselineEntry(crashed.record, before.nights)
    assert crashed.record.status == "failed"
    assert crashed.record.winner == before.record.winner
    assert crashed.record.boundary == before.record.boundary
    assert judge_entry(crashed, night(20)).verdict == "improvement"
    for status in ("missing_hardware", "not_run"):
        assert baseline.updated([failed(status=status)]) == baseline


def test_thresholds_decide_where_a_level_begins():
    """A change below the suite's thresholds stays on the level."""
    baseline = Baseline({"qwen": kept(4)})
    record = night(5, launches=launches(slowdown=1.1, seed=5))
    lax = Thresholds(**dict.fromkeys(("pp", "tg", "ttft", "request_s"), 20))

    assert len(baseline.updated([record], {"qwen": lax}).entries["qwen"].current_nights) == 5


def test_other_entries_stay_as_they_are():
    """An update of one entry, as by a shard, keeps the rest."""
    baseline = Baseline({"qwen": kept(2)})

    found = baseline.updated([night(3, name="other")])

    assert found.entries["qwen"] == baseline.entries["qwen"]
    assert len(found.entries["other"].nights) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", ":1: damaged baseline"),
        (b'{"schema": 1,\n "entries": {', ":2: damaged baseline"),
        (b"[]", "no schema version"),
        (b"{}", "no schema version"),
        (b'{"schema": null}', "no schema version"),
        (b'{"schema": 1}', "no entries"),
        (b'{"schema": 1, "entries": []}', "no entries"),
        (b'{"schema": 1, "entries": {"a": {}}}', "entry 'a'"),
        (b'{"schema": 1, "entries": {"a": null}}', "entry 'a'"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"schema": 99, "entries": {}}', "newer autofit (schema 99"),
    ],
)
def test_damaged_file_is_named(tmp_path, content, says):
    """The error has the path, and the line or the entry if it is known."""
    path = tmp_path / "baseline.json"
    path.write_bytes(content)

    with pytest.raises(UsageError) as caught:
        Baseline.read(path)

    assert str(path) in caught.value.message
    assert says in caught.value.message
    assert caught.value.hint


def test_baseline_that_cannot_be_written_has_a_hint(tmp_path):
    """The hint has options of a sweep, by which the night is not lost."""
    (tmp_path / "file").touch()

    with pytest.raises(AutofitError) as caught:
        Baseline().write(tmp_path / "file" / "baseline.json")

    assert "--resume --update-baseline" in caught.value.hint
    assert "--study" not in caught.value.hint


def test_wrong_value_anywhere_is_an_error_of_the_file(tmp_path):
    """No damage inside an entry raises anything else."""
    path = tmp_path / "baseline.json"
    data = json.loads(Baseline({"qwen": kept(2)}).dump())
    entry = data["entries"]["qwen"]
    places = [(entry, "record"), (entry, "nights"), (entry["nights"][0], "values")]
    places += [(entry["record"], key) for key in entry["record"]]
    tried = 0
    for holder, key in places:
        whole = holder[key]
        for damage in (None, 7, "x", [1], {"x": 1}):
            holder[key] = damage
            path.write_text(json.dumps(data), encoding="utf-8")
            try:
                Baseline.read(path)
            except UsageError as error:
                tried += "qwen" in error.message
        del holder[key]
        path.write_text(json.dumps(data), encoding="utf-8")
        try:
            Baseline.read(path)
        except UsageError as error:
            tried += "qwen" in error.message
        holder[key] = whole

    assert tried > 60


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("record", "peak_mib", "CUDA0"), "much"),
        (("record", "launches", 0, "pp_per_s"), "fast"),
        (("record", "boundary", 0, "fits"), "17 layers"),
        (("record", "environment", "clocks_mhz", "cpu"), []),
        (("record", "winner", "argv"), [1]),
        (("nights", 0, "peak_mib", "CUDA0"), None),
        (("nights", 0, "values", "tg_per_s"), [0.0, 0.1, 8]),
        (("nights", 0, "values", "tg_per_s"), [40.0, "x", 8]),
    ],
)
def test_value_of_the_wrong_kind_is_found_when_it_is_read(path, value):
    """A wrong merge is reported with its entry before any statistics."""
    data = json.loads(Baseline({"qwen": kept(1)}).dump())
    holder = data["entries"]["qwen"]
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value

    with pytest.raises(UsageError, match="entry 'qwen': "):
        Baseline.parse(json.dumps(data), "here")


def test_missing_file_is_an_error(tmp_path):
    """The hint says how to make one; a folder in its place is an error, too."""
    with pytest.raises(UsageError, match="does not exist") as caught:
        Baseline.read(tmp_path / "none.json")
    assert "--update-baseline" in caught.value.hint

    with pytest.raises(UsageError, match="cannot read"):
        Baseline.read(tmp_path)


def test_failed_write_leaves_no_half_file(tmp_path):
    """A file in the folder's place raises an error, and no other file is left."""
    (tmp_path / "file").write_text("x", encoding="utf-8")

    with pytest.raises(AutofitError):
        Baseline().write(tmp_path / "file" / "baseline.json")
    Baseline().write(tmp_path / "new" / "baseline.json")

    assert [one.name for one in (tmp_path / "new").iterdir()] == ["baseline.json"]


def test_night_without_a_metric_is_left_out_of_its_level():
    """A metric is compared with the nights that have it."""
    some = tuple(replace(one, ttft_s=None) for one in launches())
    found = BaselineEntry(night(3), (Night.of(night(1, launches=some)), Night.of(night(2))))

    assert [len(level) for level in found.values_by_level("ttft_s")] == [1]
    assert [len(level) for level in found.values_by_level("request_s")] == [2]
    assert found.values_by_level("load_s") == []


def test_level_without_a_metric_has_no_values():
    """Values of an earlier level do not replace those of the current one."""
    old, new = Night.of(night(1)), Night.of(night(2, launches=(LaunchValues(800.0),) * 3))

    assert BaselineEntry(night(2), (old, replace(new, level=1))).values_by_level("tg_per_s") == []


def test_answers_without_probabilities_are_kept(tmp_path):
    """A runtime that reports no probabilities still has texts and tokens."""
    plain = (RecordedAnswer("text", (1, 2)), RecordedAnswer("more"), answer())
    path = tmp_path / "baseline.json"
    Baseline().updated([night(1, answers=plain)]).write(path)

    found = Baseline.read(path).entries["qwen"].record.answers

    assert found[:2] == plain[:2]
