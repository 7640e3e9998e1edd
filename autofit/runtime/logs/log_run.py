"""One run of one server, as far as its log has been read: how far it came, what it told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from autofit.runtime.diagnosis.exit_status import normal_status
from autofit.runtime.diagnosis.failure_tracker import FailureTracker
from autofit.runtime.dialect.failure_pattern import FailurePattern
from autofit.runtime.dialect.log_pattern import LinePattern, LogPatterns
from autofit.runtime.logs.log_line import LogLine
from autofit.runtime.logs.server_log import FACT_KINDS, FactKind, FactReader
from autofit.trial.outcome import Stage

Groups = Mapping[str, str]
# What is done with a line that matches a pattern.
Handler = Callable[["LogRun", Groups, LogLine], None]


class LogRun:
    """The state of one run.

    `child_statuses` are a router's: how its children ended, by port.
    """

    def __init__(self, patterns: LogPatterns, failures: Sequence[FailurePattern]) -> None:
        self.stage: Stage = "plan"
        self.is_ready = False
        self.is_busy = False
        self.has_answered = False
        self.has_ended = False
        self.is_over = False
        self.good_line = ""
        self.last_line = ""
        self.last_number = 0
        self.failures = FailureTracker(failures)
        self.facts = FactReader(patterns.buffer_types)
        self.child_statuses: dict[str, int] = {}
        self._child_ports: dict[str, str] = {}

    def take(self, line: LogLine, number: int) -> None:
        """Remember the latest line of note, and that it was the log's so-manieth."""
        self.last_line = line.text or self.last_line
        self.last_number = number

    def start(self, _groups: Groups, _line: LogLine) -> None:
        """A first line: after others it is the next run's."""
        self.is_over = self.stage != "plan" or self.failures.finding() is not None

    def end_fitting(self, _groups: Groups, _line: LogLine) -> None:
        """Parameters have been fitted: what was told of contexts until here was on paper."""
        self.stage = "load"
        self.facts.forget_fitting()

    def reach(self, _groups: Groups, _line: LogLine, *, stage: Stage) -> None:
        """A line shows a stage."""
        # A server that gives up while loading also cleans up.
        if stage != "stop" or self.is_ready:
            self.stage = stage
            self.is_busy = stage in {"prompt", "generate"}

    def rest(self, _groups: Groups, _line: LogLine) -> None:
        """No request is being worked on."""
        if self.is_ready and not self.has_ended:
            self.stage = "prompt"
            self.is_busy = False

    def get_ready(self, _groups: Groups, line: LogLine) -> None:
        """The server can be used."""
        if not self.is_ready:
            self.is_ready = True
            self.stage = "prompt"
            self.good_line = line.text

    def answer(self, _groups: Groups, line: LogLine) -> None:
        """A request was answered."""
        self.has_answered = True
        self.good_line = line.text

    def end(self, _groups: Groups, line: LogLine) -> None:
        """The server stops because it was told to."""
        if self.is_ready:
            self.has_ended = True
            self.good_line = line.text

    def cancel(self, _groups: Groups, _line: LogLine, *, cause: str) -> None:
        """A line shows that earlier failures did no harm."""
        self.failures.cancel(cause)

    def fail(self, groups: Groups, line: LogLine, *, number: int) -> None:
        """A failure message."""
        self.failures.see(number, groups, line.text, self.stage)

    def tell(self, groups: Groups, line: LogLine, *, kind: FactKind) -> None:
        """A fact; the memory table is printed while fitting, too, and counts at the end only."""
        if kind != "memory_row" or self.has_ended:
            self.facts.read(kind, groups, line.text)

    def start_child(self, groups: Groups, _line: LogLine) -> None:
        """A router starts a child."""
        self._child_ports[groups["name"]] = groups["port"]
        self.child_statuses.pop(groups["port"], None)

    def end_child(self, groups: Groups, _line: LogLine) -> None:
        """A router's child has ended."""
        port = self._child_ports.get(groups["name"])
        if port is not None:
            self.child_statuses[port] = normal_status(int(groups["status"]))


def handlers(
    patterns: LogPatterns, failures: Sequence[FailurePattern]
) -> Iterator[tuple[Handler, LinePattern]]:
    """What is done with which line; a line that cancels comes before one that fails."""
    for handler, some in (
        (LogRun.start, patterns.started),
        (LogRun.end_fitting, patterns.fitted),
        (LogRun.get_ready, patterns.ready),
        (LogRun.rest, patterns.idle),
        (LogRun.answer, patterns.answered),
        (LogRun.end, patterns.ended),
        (LogRun.start_child, patterns.child_started),
        (LogRun.end_child, patterns.child_ended),
    ):
        for pattern in some:
            yield handler, pattern
    for mark in patterns.stages:
        yield partial(LogRun.reach, stage=mark.stage), LinePattern(mark.has)
    for cause in sorted({cause for failure in failures for cause in failure.cancelled_by}):
        yield partial(LogRun.cancel, cause=cause), LinePattern((cause,))
    for number, failure in enumerate(failures):
        yield partial(LogRun.fail, number=number), failure.line
    for kind in FACT_KINDS:
        for pattern in getattr(patterns.facts, kind):
            yield partial(LogRun.tell, kind=kind), pattern
