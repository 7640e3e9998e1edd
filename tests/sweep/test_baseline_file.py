"""The baseline file: what it keeps, that nothing is lost in it, and how it says it is damaged."""

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
from autofit.sweep.baseline_file import Baseline
from autofit.sweep.entry_record import (
    EntryRecord,
    LaunchValues,
)
from autofit.sweep.judge import judge
from autofit.sweep.kept_night import Kept, Night
from autofit.sweep.thresholds import Thresholds


@hypothesis.settings(max_examples=40)
@given(records)
def test_a_record_survives_json(record):
    """Whatever a night measured is read back as it was."""
    assert EntryRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


@hypothesis.settings(max_examples=40)
@given(st.lists(records, max_size=2))
def test_a_baseline_is_read_back_as_it_was_written(nights):
    """Names, numbers and answers survive the text, halves of characters included."""
    baseline = Baseline().updated(nights)
    text = baseline.dump().encode("utf-8").decode("utf-8")

    assert Baseline.parse(text, "here") == baseline
    assert Baseline.parse(text, "here").dump() == text


def test_a_night_more_changes_few_lines():
    """What another night adds is its own lines: keys are sorted, short things on one line."""
    before = Baseline({"qwen": kept(3)})
    lines = before.dump().splitlines()
    after = before.updated([night(4, launches=launches(seed=3))]).dump().splitlines()

    assert len([line for line in after if line not in lines]) < 20
    assert max(map(len, lines)) < 2500
    assert len(before.dump()) < 8000
    assert '"peak_mib": {"CUDA0": 11000.0, "host": 2000.0}' in before.dump()
    assert "e-0" not in before.dump()


def test_answers_are_kept_as_far_as_comparing_them_needs():
    """Rivals beyond the third go, and the verdicts on answers stay."""
    long = RecordedAnswer("x", (5,), (TokenChoice(5, -0.1, {t: -t / 10 for t in range(1, 11)}),))

    found = Baseline().updated([night(1, answers=(long,))]).entry("qwen").record.answers[0]

    assert set(found.choices[0].top) == {1, 2, 3}
    assert found.choices[0].logprob == -0.1


def test_a_near_tie_that_falls_the_other_way_is_rounding_after_keeping():
    """The second likeliest token is kept, so that its nearness is still known."""

    def near(first, second):
        top = {first: -0.70, second: -0.72, 3: -4.0, 4: -5.0}
        return (RecordedAnswer(str(first), (first,), (TokenChoice(first, -0.70, top),)),)

    before = Baseline().updated([night(1, answers=near(1, 2))]).entry("qwen")
    verdict = judge(before, night(20, answers=near(2, 1)))

    assert {one.metric: one.verdict for one in verdict.metrics}["answers"] == "same"


def test_a_level_goes_on_while_nothing_changes():
    """Nights alike are one level, of which thirty are kept."""
    found = kept(35)

    assert len(found.nights) == 30
    assert len(found.level) == 30
    assert [len(level) for level in found.levels("request_s")] == [30]


def test_a_night_that_is_kept_twice_counts_once():
    """A sweep that is gone on with after its end adds nothing to the baseline."""
    baseline = Baseline({"qwen": kept(3)})
    again = night(3, launches=launches(seed=3))

    assert baseline.updated([again]) == baseline


def test_an_accepted_change_begins_a_level():
    """After a regression is kept the next night like it is the same, and what it was better."""
    baseline = Baseline({"qwen": kept(4)})
    slow = night(5, launches=launches(slowdown=1.1, seed=5))

    accepted = baseline.updated([slow]).entry("qwen")

    assert [len(level) for level in accepted.levels("request_s")] == [4, 1]
    assert judge(accepted, night(6, launches=launches(slowdown=1.1, seed=6))).verdict == "same"
    assert judge(accepted, night(7)).verdict == "improvement"


def test_a_night_that_was_off_does_not_cost_the_nights_before_it():
    """Accepted as a change, it is alone at its level once the next night is like the others."""
    off = night(5, launches=launches(slowdown=0.9, seed=5))
    back = night(6)

    found = Baseline({"qwen": kept(4)}).updated([off]).updated([back]).entry("qwen")

    assert [one.level for one in found.nights] == [0, 0, 0, 0, 1, 0]
    assert len(found.level) == 5
    assert judge(found, night(7)).verdict == "same"


def test_a_slow_creep_is_not_absorbed():
    """A percent a night, kept every night, is told before it is eight."""
    baseline = Baseline({"qwen": kept(5)})
    for step in range(1, 9):
        record = night(5 + step, launches=launches(slowdown=1.01**step, noise=0.003, seed=step))
        if judge(baseline.entry("qwen"), record).verdict == "regression":
            break
        baseline = baseline.updated([record])
    else:
        pytest.fail("eight nights of a percent each went through")

    assert step > 2


def test_other_settings_begin_a_level():
    """What a tune found anew, or is asked otherwise, is compared from there on."""
    for changes in (
        {"winner": replace(WINNER, digest="other")},
        {"environment": replace(night().environment, task="longer")},
    ):
        found = Baseline({"qwen": kept(4)}).updated([night(5, **changes)]).entry("qwen")

        assert len(found.level) == 1


def test_failures_keep_the_nights_and_skips_keep_all():
    """A crash replaces the record but not its settings, missing hardware nothing."""
    before = kept(3)
    baseline = Baseline({"qwen": before})

    crashed = baseline.updated([failed(winner=None)]).entry("qwen")

    assert crashed == Kept(crashed.record, before.nights)
    assert crashed.record.status == "failed"
    assert crashed.record.winner == before.record.winner
    assert crashed.record.boundary == before.record.boundary
    assert judge(crashed, night(20)).verdict == "improvement"
    for status in ("missing_hardware", "not_run"):
        assert baseline.updated([failed(status=status)]) == baseline


def test_thresholds_decide_what_begins_a_level():
    """A change that a suite does not mind goes on with the level."""
    baseline = Baseline({"qwen": kept(4)})
    record = night(5, launches=launches(slowdown=1.1, seed=5))
    lax = Thresholds.of(dict.fromkeys(("pp", "tg", "ttft", "request_s"), 20))

    assert len(baseline.updated([record], {"qwen": lax}).entry("qwen").level) == 5


def test_other_entries_are_left_alone():
    """Updating one entry, as a shard does, keeps the rest."""
    baseline = Baseline({"qwen": kept(2)})

    found = baseline.updated([night(3, name="other")])

    assert found.entry("qwen") == baseline.entry("qwen")
    assert len(found.entry("other").nights) == 1
    assert found.entry("nobody") is None


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
def test_a_damaged_file_is_named(tmp_path, content, says):
    """The error has the path, and where it can the line or the entry."""
    path = tmp_path / "baseline.json"
    path.write_bytes(content)

    with pytest.raises(UsageError) as caught:
        Baseline.read(path)

    assert str(path) in caught.value.message
    assert says in caught.value.message
    assert caught.value.hint


def test_what_cannot_be_written_says_how_to_write_it_later(tmp_path):
    """A night is not lost with it, and no option is named that a sweep does not have."""
    (tmp_path / "file").touch()

    with pytest.raises(AutofitError) as caught:
        Baseline().write(tmp_path / "file" / "baseline.json")

    assert "--resume --update-baseline" in caught.value.hint
    assert "--study" not in caught.value.hint


def test_every_missing_or_wrong_value_is_an_error_of_the_file(tmp_path):
    """No damage inside an entry ends in a traceback."""
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
def test_a_value_of_the_wrong_kind_is_found_when_it_is_read(path, value):
    """A merge gone wrong is told with its place, not by a traceback of the statistics."""
    data = json.loads(Baseline({"qwen": kept(1)}).dump())
    holder = data["entries"]["qwen"]
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value

    with pytest.raises(UsageError, match="entry 'qwen': "):
        Baseline.parse(json.dumps(data), "here")


def test_a_file_that_is_not_there_is_told(tmp_path):
    """With how to make one; a folder in its place is told, too."""
    with pytest.raises(UsageError, match="there is no baseline") as caught:
        Baseline.read(tmp_path / "none.json")
    assert "--update-baseline" in caught.value.hint

    with pytest.raises(UsageError, match="cannot read"):
        Baseline.read(tmp_path)


def test_a_folder_that_cannot_be_written_leaves_the_old_file(tmp_path):
    """A file where the folder should be ends in an error, not in half a baseline."""
    (tmp_path / "file").write_text("x", encoding="utf-8")

    with pytest.raises(AutofitError):
        Baseline().write(tmp_path / "file" / "baseline.json")
    Baseline().write(tmp_path / "new" / "baseline.json")

    assert [one.name for one in (tmp_path / "new").iterdir()] == ["baseline.json"]


def test_a_night_without_figures_is_none_of_a_level():
    """A metric that only some nights have is compared with these."""
    some = tuple(replace(one, ttft_s=None) for one in launches())
    found = Kept(night(3), (Night.of(night(1, launches=some)), Night.of(night(2))))

    assert [len(level) for level in found.levels("ttft_s")] == [1]
    assert [len(level) for level in found.levels("request_s")] == [2]
    assert found.levels("load_s") == []


def test_a_level_without_a_metric_has_nothing_to_compare_with():
    """Values of an earlier level are not those of this one."""
    old, new = Night.of(night(1)), Night.of(night(2, launches=(LaunchValues(800.0),) * 3))

    assert Kept(night(2), (old, replace(new, level=1))).levels("tg_per_s") == []


def test_answers_without_chances_are_kept(tmp_path):
    """A runtime that tells no chances still has texts and tokens."""
    plain = (RecordedAnswer("text", (1, 2)), RecordedAnswer("more"), answer())
    path = tmp_path / "baseline.json"
    Baseline().updated([night(1, answers=plain)]).write(path)

    found = Baseline.read(path).entry("qwen").record.answers

    assert found[:2] == plain[:2]
