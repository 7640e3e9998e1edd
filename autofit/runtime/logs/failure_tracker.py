"""The failure messages of one run, and which of them decides the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

from autofit.runtime.dialect.log_patterns import FailureKind, FailurePattern
from autofit.trial.outcome import Buffer, Stage
from autofit.units import MIB

_T = TypeVar("_T")
_STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class LoggedFailure:
    """A failure in a log, with values from all lines that report it.

    `pattern` is the one that decides the kind. Names of devices are as in the log.
    """

    kind: FailureKind
    pattern: FailurePattern
    evidence: str
    stage: Stage
    buffer: Buffer | None
    device: str | None
    index: str | None
    buffer_type: str | None
    requested_mib: float | None
    is_limit: bool
    advice: tuple[str, ...]
    advice_if_free: tuple[str, ...]
    groups: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Hit:
    pattern: FailurePattern
    groups: Mapping[str, str]
    text: str
    stage: Stage
    cause: str | None = None

    @property
    def evidence(self) -> str:
        """The line that shows the failure, or the cause at the top of its chain."""
        return self.cause or self.text if self.pattern.is_chain_end else self.text

    @property
    def device(self) -> str | None:
        """The device that the pattern names; its number may be on another line."""
        device = self.pattern.device
        return device and device.format(**{"index": "{index}", **self.groups})


class FailureTracker:
    """The failure messages of one run of a server.

    A message can be harmless, if a later line shows that the runtime continued. Of all other
    messages, the first one in the dialect's order decides the kind. Further messages of that kind
    add values.
    """

    def __init__(self, patterns: Sequence[FailurePattern]) -> None:
        self._patterns = patterns
        self._open: dict[int, _Hit] = {}
        self._final: dict[int, _Hit] = {}

    def add(
        self,
        number: int,
        groups: Mapping[str, str],
        text: str,
        stage: Stage,
        cause: str | None = None,
    ) -> None:
        """Add a line that matches the pattern with this number.

        `cause` is the first line of the chain of errors that the line is part of.
        """
        pattern = self._patterns[number]
        hit = _Hit(pattern, groups, text, stage, cause)
        if pattern.cancelled_by:
            # Of repeated allocations the last one counts, of other messages the first.
            if pattern.kind == "out_of_memory" or number not in self._open:
                self._open[number] = hit
            return
        self._final.setdefault(number, hit)
        if pattern.kind is not None:
            # The runtime gave up, so the open messages are part of the failure.
            self._final = {**self._open, **self._final}
            self._open.clear()

    def cancel(self, cause: str) -> None:
        """Drop the open messages that a line with this text shows to be harmless."""
        for number, hit in list(self._open.items()):
            if cause in hit.pattern.cancelled_by:
                del self._open[number]

    def raise_stage(self, stage: Stage) -> None:
        """Move the messages of earlier stages to this one."""
        for hits in (self._open, self._final):
            for number, hit in hits.items():
                if _STAGES.index(hit.stage) < _STAGES.index(stage):
                    hits[number] = replace(hit, stage=stage)

    def find(self) -> LoggedFailure | None:
        """Return the failure that was not cancelled, or None if there is none."""
        by_number = {**self._open, **self._final}
        hits = [by_number[number] for number in sorted(by_number)]
        first = next((hit for hit in hits if hit.pattern.kind is not None), None)
        if first is None or first.pattern.kind is None:
            return None
        kind = first.pattern.kind
        rest = [hit for hit in hits if hit is not first and hit.pattern.kind in {None, kind}]
        related = [first, *rest]
        return LoggedFailure(
            kind=kind,
            pattern=first.pattern,
            evidence=first.evidence,
            stage=_first(hit.pattern.stage for hit in related) or first.stage,
            buffer=_first(hit.pattern.buffer for hit in related),
            device=_first(hit.device for hit in related),
            index=_first(hit.groups.get("index") for hit in related),
            buffer_type=_first(hit.groups.get("buffer_type") for hit in related),
            requested_mib=_first(_requested_mib(hit.groups) for hit in related),
            is_limit=any(hit.pattern.is_limit for hit in related),
            advice=_first(hit.pattern.advice or None for hit in related) or (),
            advice_if_free=_first(hit.pattern.advice_if_free or None for hit in related) or (),
            groups=first.groups,
        )


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


def _requested_mib(groups: Mapping[str, str]) -> float | None:
    try:
        return float(groups["mib"]) if "mib" in groups else int(groups["bytes"]) / MIB
    except (KeyError, ValueError):  # none, or a number of a damaged line
        return None
