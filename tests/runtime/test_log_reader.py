"""Failure messages of one run: precedence, cancellation and shared values."""

from __future__ import annotations

from pydantic import TypeAdapter

from autofit.runtime.dialect.log_patterns import FailurePattern
from autofit.runtime.logs.log_reader import FailureTracker

FILE = TypeAdapter(FailurePattern)


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
