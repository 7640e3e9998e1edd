"""Failure messages of one run: precedence, cancellation and shared values."""

from __future__ import annotations

from pydantic import TypeAdapter

from autofit.runtime.dialect.log_patterns import FailurePattern
from autofit.runtime.logs.log_reader import FailureTracker

FILE = TypeAdapter(FailurePattern)


def pattern(has: str, **rest: object) -> FailurePattern:
    """Return a pattern of a dialect file."""
    return FILE.validate_python({"has": has, "kind": "crashed", **rest})


def test_first_pattern_decides():
    """The order of patterns decides, and not the order of lines."""
    tracker = FailureTracker([pattern("cause"), pattern("effect")])
    tracker.add(1, {}, "effect", "load")
    tracker.add(0, {}, "cause", "load")

    failure = tracker.find()

    assert failure is not None
    assert failure.evidence == "cause"


def test_cancelled_failure_can_be_followed_by_a_real_one():
    """A message is dropped when it is cancelled, and kept when it occurs again later."""
    tracker = FailureTracker([pattern("refused", cancelled_by=["went on"])])
    tracker.add(0, {}, "refused: 1", "load")
    tracker.cancel("something else")
    assert tracker.find() is not None

    tracker.cancel("went on")
    assert tracker.find() is None

    tracker.add(0, {}, "refused: 2", "prompt")
    failure = tracker.find()
    assert failure is not None
    assert (failure.evidence, failure.stage) == ("refused: 2", "prompt")


def test_final_failure_keeps_open_messages():
    """After a final failure, an open message cannot be cancelled."""
    patterns = [pattern("refused", cancelled_by=["went on"]), pattern("gave up")]
    tracker = FailureTracker(patterns)
    tracker.add(0, {}, "refused", "load")
    tracker.add(1, {}, "gave up", "load")
    tracker.cancel("went on")

    failure = tracker.find()

    assert failure is not None
    assert failure.evidence == "refused"


def test_line_without_a_kind_only_adds_values():
    """A line without a kind is not a failure, but adds its values to one."""
    detail = FILE.validate_python({"has": "device"})
    memory = FILE.validate_python({"has": "memory", "kind": "out_of_memory"})
    tracker = FailureTracker([memory, detail])
    tracker.add(1, {"index": "3"}, "device 3", "load")
    assert tracker.find() is None

    tracker.add(0, {"bytes": str(3 << 20)}, "memory", "load")
    failure = tracker.find()
    assert failure is not None
    assert (failure.index, failure.requested_mib) == ("3", 3.0)
