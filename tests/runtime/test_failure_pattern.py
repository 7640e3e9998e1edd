"""Failure and log patterns: what a dialect file may say, and how lines are found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from runtime.log_corpus import all_cases

from autofit.runtime.dialect.dialect_file import load_all_dialects, load_dialect
from autofit.runtime.dialect.log_patterns import FailurePattern, LinePattern
from autofit.runtime.logs.log_line import CompiledPattern, PatternIndex
from autofit.runtime.logs.log_reader import FailureTracker, make_handlers

FILE = TypeAdapter(FailurePattern)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"has": "error 42"}, "must hold no digit"),
        ({"has": 'a "b"'}, "double quote"),
        ({"has": " "}, "more than spaces"),
        ({"has": []}, "at least one text"),
        ({"has": "x", "match": "("}, "not a regex"),
        ({"has": "x", "kind": "crashed", "reason": "bad_value"}, "is not a reason of 'crashed'"),
        ({"has": "x", "kind": "crashed", "where": "host"}, "do not apply to 'crashed'"),
        ({"has": "x", "kind": "completed"}, "Input should be"),
    ],
)
def test_a_faulty_pattern_is_refused(data: dict[str, object], fault: str):
    """Each fault of a pattern is told."""
    with pytest.raises(ValidationError, match=fault):
        FILE.validate_python(data)


def test_every_dialect_has_the_patterns():
    """Dialects that extend another know its log and its failures."""
    for name, dialect in load_all_dialects().items():
        if dialect.extends == "llama_server" or name == "llama_server":
            assert dialect.failures, name
            assert dialect.log.facts.buffer, name


def test_the_index_finds_what_a_search_of_all_patterns_finds():
    """The quick look at shapes misses no pattern on any line of the corpus."""
    dialect = load_dialect("llama_server")
    patterns = [pattern for _, pattern in make_handlers(dialect.log, dialect.failures)]
    index = PatternIndex(enumerate(patterns))
    seen = set()
    for case in all_cases():
        for line in case.text.splitlines():
            if line in seen:
                continue
            seen.add(line)
            quick = [e.key for e in index.candidates(line) if e.groups(line) is not None]
            slow = [
                n
                for n, p in enumerate(patterns)
                if CompiledPattern.of(n, p).groups(line) is not None
            ]
            assert quick == slow, line


@given(st.lists(st.text(min_size=1, alphabet="ab c"), min_size=1), st.text(alphabet="ab c01"))
def test_the_index_finds_any_text_in_any_line(texts: list[str], line: str):
    """Stems and shapes lose nothing, whatever the patterns."""
    index = PatternIndex((text, LinePattern((text,))) for text in texts)

    found = [e.key for e in index.candidates(line) if e.groups(line) is not None]

    assert found == [text for text in texts if text in line]


def test_every_text_of_a_failure_is_in_the_corpus():
    """No failure is claimed to be known without a log that shows it."""
    text = "\n".join(case.text for case in all_cases())
    failures = load_dialect("llama_server").failures

    assert [has for failure in failures for has in failure.has if has not in text] == []


def test_every_text_that_cancels_a_failure_is_in_the_corpus():
    """No line is claimed to be harmless without a log that shows what follows."""
    text = "\n".join(case.text for case in all_cases())
    failures = load_dialect("llama_server").failures

    assert {c for failure in failures for c in failure.cancelled_by if c not in text} == set()


def pattern(has: str, **rest: object) -> FailurePattern:
    """A pattern of a dialect file."""
    return FILE.validate_python({"has": has, "kind": "crashed", **rest})


def test_the_first_pattern_wins_wherever_its_line_is():
    """Precedence is over the whole log, not by the order of lines."""
    tracker = FailureTracker([pattern("cause"), pattern("effect")])
    tracker.add(1, {}, "effect", "load")
    tracker.add(0, {}, "cause", "load")

    finding = tracker.find()

    assert finding is not None
    assert finding.evidence == "cause"


def test_a_cancelled_failure_is_none_but_a_later_one_is():
    """A retry is harmless; the same message after it may not be."""
    tracker = FailureTracker([pattern("refused", cancelled_by=["went on"])])
    tracker.add(0, {}, "refused: 1", "load")
    tracker.cancel("something else")
    assert tracker.find() is not None

    tracker.cancel("went on")
    assert tracker.find() is None

    tracker.add(0, {}, "refused: 2", "prompt")
    finding = tracker.find()
    assert finding is not None
    assert (finding.evidence, finding.stage) == ("refused: 2", "prompt")


def test_a_failure_for_good_keeps_what_led_to_it():
    """What could have been harmless no longer is, once the runtime gave up."""
    patterns = [pattern("refused", cancelled_by=["went on"]), pattern("gave up")]
    tracker = FailureTracker(patterns)
    tracker.add(0, {}, "refused", "load")
    tracker.add(1, {}, "gave up", "load")
    tracker.cancel("went on")

    finding = tracker.find()

    assert finding is not None
    assert finding.evidence == "refused"


def test_a_line_without_a_kind_adds_but_does_not_fail():
    """Details alone are no failure, but complete one."""
    detail = FILE.validate_python({"has": "device"})
    memory = FILE.validate_python({"has": "memory", "kind": "out_of_memory"})
    tracker = FailureTracker([memory, detail])
    tracker.add(1, {"index": "3"}, "device 3", "load")
    assert tracker.find() is None

    tracker.add(0, {"bytes": str(3 << 20)}, "memory", "load")
    finding = tracker.find()
    assert finding is not None
    assert (finding.index, finding.requested_mib) == ("3", 3.0)
