"""Reads a whole log in one pass and in bounded memory: restarts, a router and its children."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Self

from autofit.runtime.dialect.failure_pattern import FailurePattern
from autofit.runtime.dialect.log_pattern import LogPatterns
from autofit.runtime.logs.log_index import Entry, LogIndex
from autofit.runtime.logs.log_line import LogLine, strip_prefixes
from autofit.runtime.logs.log_run import Handler, LogRun, handlers

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

    def _take(self, line: LogLine, entries: Iterable[Entry[Handler]]) -> None:
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
def _index(patterns: LogPatterns, failures: tuple[FailurePattern, ...]) -> LogIndex[Handler]:
    return LogIndex(handlers(patterns, failures))
