"""Reads a whole log in one pass and in bounded memory: restarts, a router and its children."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Self, TypeVar

from autofit.runtime.diagnosis.exit_status import normalize_status
from autofit.runtime.dialect.log_patterns import (
    FailureKind,
    FailurePattern,
    LinePattern,
    LogPatterns,
)
from autofit.runtime.logs.log_line import CompiledPattern, LogLine, PatternIndex, strip_prefixes
from autofit.runtime.logs.server_log import FACT_KINDS, FactKind, FactReader
from autofit.trial.outcome import Buffer, Stage, Where
from autofit.units import MIB

# Children of a router that are kept; of more, the one that has been silent longest goes.
_MOST_SOURCES = 256


class LogReader:
    """Is fed with a log's lines and keeps the current run of each source.

    `on_over` is called with a run and its source when another of that source follows it, or
    it has been silent for long: with a log of any length only the caller knows what to keep.
    """

    def __init__(
        self,
        patterns: LogPatterns,
        failures: Sequence[FailurePattern],
        on_over: Callable[[LogRun, str], None],
    ) -> None:
        self._new_run = partial(LogRun, patterns, failures)
        self._index = _index(patterns, tuple(failures))
        self._on_over = on_over
        self._runs: dict[str, LogRun] = {}
        self._number = 0
        self._last = ""

    def read(self, lines: Iterable[str]) -> Self:
        """Take in lines."""
        candidates = self._index.candidates
        last = self._last
        for raw in lines:
            found = candidates(raw)
            if found:
                for line in strip_prefixes(raw):
                    self._take(line, found)
            last = raw or last
        self._last = last
        return self

    @property
    def runs(self) -> dict[str, LogRun]:
        """The current runs by source: a child's port, or empty for the server or router itself.

        There is always one with an empty source.
        """
        for line in strip_prefixes(self._last):
            run = self._run_of(line.source)
            run.last_line = line.text or run.last_line
        self._run_of("")
        return dict(self._runs)

    def _take(self, line: LogLine, entries: Iterable[CompiledPattern[Handler]]) -> None:
        self._number += 1
        run = self._run_of(line.source)
        run.take(line, self._number)
        for entry in entries:
            groups = entry.groups(line.text)
            if groups is not None:
                entry.key(run, groups, line)
        if run.is_over:
            self._on_over(self._runs.pop(line.source), line.source)
            self._run_of(line.source).take(line, self._number)

    def _run_of(self, source: str) -> LogRun:
        run = self._runs.get(source)
        if run is None:
            if len(self._runs) >= _MOST_SOURCES:
                oldest = min(self._runs, key=lambda name: self._runs[name].last_number)
                self._on_over(self._runs.pop(oldest), oldest)
            run = self._runs[source] = self._new_run()
        return run


@lru_cache(maxsize=8)
def _index(patterns: LogPatterns, failures: tuple[FailurePattern, ...]) -> PatternIndex[Handler]:
    return PatternIndex(handlers(patterns, failures))


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LoggedFailure:
    """A failure as its lines tell it, before the names of devices are looked up."""

    kind: FailureKind
    evidence: str
    stage: Stage
    where: Where | None
    buffer: Buffer | None
    reason: str | None
    device: str | None
    index: str | None
    buffer_type: str | None
    requested_mib: float | None
    may_be_memory: bool
    advice: tuple[str, ...]
    groups: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Hit:
    pattern: FailurePattern
    groups: Mapping[str, str]
    text: str
    stage: Stage


class FailureTracker:
    """The failure messages of one run of a server."""

    def __init__(self, patterns: Sequence[FailurePattern]) -> None:
        self._patterns = patterns
        self._open: dict[int, _Hit] = {}
        self._sealed: dict[int, _Hit] = {}

    def see(self, number: int, groups: Mapping[str, str], text: str, stage: Stage) -> None:
        """Take in a line that matches the pattern of this number."""
        pattern = self._patterns[number]
        hit = _Hit(pattern, groups, text, stage)
        if pattern.cancelled_by:
            # Of tries that are repeated the last one counts.
            self._open[number] = hit
            return
        self._sealed.setdefault(number, hit)
        if pattern.kind is not None:
            # A failure for good: what was only possibly one belongs to it.
            self._sealed = {**self._open, **self._sealed}
            self._open.clear()

    def cancel(self, cause: str) -> None:
        """Drop what a line with this text shows to have done no harm."""
        harmless = [n for n, hit in self._open.items() if cause in hit.pattern.cancelled_by]
        for number in harmless:
            del self._open[number]

    def finding(self) -> LoggedFailure | None:
        """The failure that stands, if any."""
        standing = {**self._open, **self._sealed}
        hits = [standing[number] for number in sorted(standing)]
        first = next((hit for hit in hits if hit.pattern.kind is not None), None)
        if first is None or first.pattern.kind is None:
            return None
        kind = first.pattern.kind
        rest = [hit for hit in hits if hit is not first and hit.pattern.kind in {None, kind}]
        told = [first, *rest]
        return LoggedFailure(
            kind=kind,
            evidence=first.text,
            stage=_first(hit.pattern.stage for hit in told) or first.stage,
            where=first.pattern.where,
            buffer=_first(hit.pattern.buffer for hit in told),
            reason=_first(hit.pattern.reason for hit in told),
            device=_first(hit.pattern.device for hit in told),
            index=_first(hit.groups.get("index") for hit in told),
            buffer_type=_first(hit.groups.get("buffer_type") for hit in told),
            requested_mib=_first(_mib(hit.groups) for hit in told),
            may_be_memory=first.pattern.may_be_memory,
            advice=_first(hit.pattern.advice or None for hit in told) or (),
            groups=first.groups,
        )


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


def _mib(groups: Mapping[str, str]) -> float | None:
    if "mib" in groups:
        return float(groups["mib"])
    if "bytes" in groups:
        return int(groups["bytes"]) / MIB
    return None


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
            self.child_statuses[port] = normalize_status(int(groups["status"]))


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
        yield partial(LogRun.fail, number=number), failure
    for kind in FACT_KINDS:
        for pattern in getattr(patterns.facts, kind):
            yield partial(LogRun.tell, kind=kind), pattern
