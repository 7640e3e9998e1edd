"""A reader of whole logs in one pass: restarts, a router and its children, failures.

The use of memory does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Self, get_args

from autofit.runtime.dialect.log_patterns import FailurePattern, LinePattern, LogPatterns
from autofit.runtime.logs.failure_tracker import FailureTracker
from autofit.runtime.logs.log_line import CompiledPattern, LogLine, PatternIndex, strip_prefixes
from autofit.runtime.logs.server_log import FACT_KINDS, FactReader
from autofit.trial.outcome import Stage

_STAGES: tuple[Stage, ...] = get_args(Stage)
# The number of sources that are kept; then the one with the oldest line is dropped.
_MOST_SOURCES = 256
# Lines of one chain of errors may have this many other lines between them.
_CHAIN_GAP = 2


class LogReader:
    """The current run of each source of a log: a server, or a router and its children.

    `on_over` is called with a run and its source when the run is over: another run of the source
    follows, or the source is dropped.
    """

    def __init__(
        self,
        patterns: LogPatterns,
        failures: Sequence[FailurePattern],
        on_over: Callable[[LogRun, str], None],
    ) -> None:
        self._new_run = partial(LogRun, patterns, failures)
        self._index = _make_index(patterns, tuple(failures))
        self._on_over = on_over
        self._runs: dict[str, LogRun] = {}
        self._number = 0
        self._last = ""

    def read(self, lines: Iterable[str]) -> Self:
        """Read lines."""
        candidates = self._index.candidates
        last, number = self._last, self._number
        for raw in lines:
            number += 1
            found = candidates(raw)
            if found:
                for line in strip_prefixes(raw):
                    self._handle(line, number, found)
            last = raw or last
        self._last, self._number = last, number
        return self

    @property
    def runs(self) -> dict[str, LogRun]:
        """The current runs by source: the port of a child, or "" for the server or router.

        The source "" is always present.
        """
        for line in strip_prefixes(self._last):
            run = self._run_of(line.source)
            run.last_line = line.text or run.last_line
        self._run_of("")
        return dict(self._runs)

    def _handle(
        self, line: LogLine, number: int, patterns: Iterable[CompiledPattern[Handler]]
    ) -> None:
        run = self._run_of(line.source)
        run.note_line(line, number)
        for pattern in patterns:
            groups = pattern.groups(line.text)
            if groups is not None:
                pattern.key(run, groups, line)
        if run.is_over:
            self._on_over(self._runs.pop(line.source), line.source)
            self._run_of(line.source).note_line(line, number)

    def _run_of(self, source: str) -> LogRun:
        run = self._runs.get(source)
        if run is None:
            if len(self._runs) >= _MOST_SOURCES:
                oldest = min(self._runs, key=lambda name: self._runs[name].last_number)
                self._on_over(self._runs.pop(oldest), oldest)
            run = self._runs[source] = self._new_run()
        return run


@lru_cache(maxsize=8)
def _make_index(
    patterns: LogPatterns, failures: tuple[FailurePattern, ...]
) -> PatternIndex[Handler]:
    return PatternIndex(make_handlers(patterns, failures))


Groups = Mapping[str, str]


class LogRun:
    """The state of one run of a server after the lines read so far.

    `child_statuses` are the exit statuses of a router's children, by port.
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
        self.cause_line = ""
        self.error_line = ""
        self.error_number = 0
        self.failures = FailureTracker(failures)
        self.facts = FactReader(patterns.buffer_types)
        self.child_statuses: dict[str, int] = {}
        self._child_ports: dict[str, str] = {}

    def note_line(self, line: LogLine, number: int) -> None:
        """Remember the latest line that matched a pattern, and its number in the log."""
        self.last_line = line.text or self.last_line
        self.last_number = number

    def start(self, _groups: Groups, _line: LogLine) -> None:
        """Handle the first line of a server; after other lines, it begins the next run."""
        self.is_over = self.stage != "plan" or self.failures.find() is not None

    def end_fitting(self, _groups: Groups, _line: LogLine) -> None:
        """Handle the end of fitting: the contexts reported so far were only computed."""
        self.stage = "load"
        self.facts.forget_fitting()

    def reach(self, _groups: Groups, _line: LogLine, *, stage: Stage) -> None:
        """Handle a line that shows a stage."""
        # A server that fails while it loads also cleans up.
        if stage != "stop" or self.is_ready:
            self.stage = stage
            self.is_busy = stage in {"prompt", "generate"}

    def notice_sign(self, _groups: Groups, _line: LogLine, *, stage: Stage) -> None:
        """Handle a line that a stage prints: the launch has reached at least that stage."""
        self.stage = max(self.stage, stage, key=_STAGES.index)

    def notice_frame(self, _groups: Groups, _line: LogLine, *, stage: Stage) -> None:
        """Handle a line of a backtrace, which shows where the failure before it happened."""
        # Warming up also decodes.
        if self.stage != "warmup":
            self.stage = max(self.stage, stage, key=_STAGES.index)
            self.failures.raise_stage(self.stage)

    def become_idle(self, _groups: Groups, _line: LogLine) -> None:
        """Handle the end of a request."""
        if self.is_ready and not self.has_ended:
            self.stage = "prompt"
            self.is_busy = False

    def become_ready(self, _groups: Groups, line: LogLine) -> None:
        """Handle the line of a server that accepts requests."""
        if not self.is_ready:
            self.is_ready = True
            self.stage = "prompt"
            self.good_line = line.text

    def answer(self, _groups: Groups, line: LogLine) -> None:
        """Handle an answered request."""
        self.has_answered = True
        self.good_line = line.text

    def end(self, _groups: Groups, line: LogLine) -> None:
        """Handle a stop on request."""
        if self.is_ready:
            self.has_ended = True
            self.good_line = line.text

    def cancel(self, _groups: Groups, _line: LogLine, *, cause: str) -> None:
        """Handle a line that shows that earlier failures were harmless."""
        self.failures.cancel(cause)

    @property
    def ends_with_error(self) -> bool:
        """True if an error is at the end of a log, before the server was ready."""
        return not self.is_ready and bool(self.error_line) and self.last_line == self.error_line

    def notice_error(self, _groups: Groups, line: LogLine) -> None:
        """Handle a line of a chain of errors; the first one is the cause."""
        if self.last_number - self.error_number > _CHAIN_GAP + 1 or not self.cause_line:
            self.cause_line = line.text
        self.error_line, self.error_number = line.text, self.last_number

    def fail(self, groups: Groups, line: LogLine, *, number: int) -> None:
        """Handle a failure message."""
        is_in_chain = self.error_number == self.last_number
        cause = self.cause_line if is_in_chain else None
        self.failures.add(number, groups, line.text, self.stage, cause)

    def add_fact(self, groups: Groups, line: LogLine, *, kind: str) -> None:
        """Handle a fact; the memory table counts only at the end, since fitting prints it too."""
        if kind != "memory_row" or self.has_ended:
            self.facts.read(kind, groups, line.text)

    def start_child(self, groups: Groups, _line: LogLine) -> None:
        """Handle the start of a router's child."""
        self._child_ports[groups["name"]] = groups["port"]
        self.child_statuses.pop(groups["port"], None)

    def end_child(self, groups: Groups, _line: LogLine) -> None:
        """Handle the end of a router's child."""
        port = self._child_ports.get(groups["name"])
        if port is not None:
            self.child_statuses[port] = int(groups["status"])


# The effect of a line that matches a pattern.
Handler = Callable[[LogRun, Groups, LogLine], None]


def make_handlers(
    patterns: LogPatterns, failures: Sequence[FailurePattern]
) -> Iterator[tuple[Handler, LinePattern]]:
    """Yield each handler with its pattern; those that cancel failures come before failures."""
    for handler, some in (
        (LogRun.start, patterns.started),
        (LogRun.end_fitting, patterns.fitted),
        (LogRun.become_ready, patterns.ready),
        (LogRun.become_idle, patterns.idle),
        (LogRun.answer, patterns.answered),
        (LogRun.end, patterns.ended),
        (LogRun.start_child, patterns.child_started),
        (LogRun.end_child, patterns.child_ended),
        (LogRun.notice_error, patterns.errors),
    ):
        for pattern in some:
            yield handler, pattern
    for mark in patterns.stages:
        yield partial(LogRun.reach, stage=mark.stage), LinePattern(mark.has, mark.match)
    for mark in patterns.signs:
        yield partial(LogRun.notice_sign, stage=mark.stage), LinePattern(mark.has, mark.match)
    for mark in patterns.frames:
        yield partial(LogRun.notice_frame, stage=mark.stage), LinePattern(mark.has, mark.match)
    for cause in sorted({cause for failure in failures for cause in failure.cancelled_by}):
        yield partial(LogRun.cancel, cause=cause), LinePattern((cause,))
    for number, failure in enumerate(failures):
        yield partial(LogRun.fail, number=number), failure
    for kind in FACT_KINDS:
        for pattern in getattr(patterns.facts, kind):
            yield partial(LogRun.add_fact, kind=kind), pattern
