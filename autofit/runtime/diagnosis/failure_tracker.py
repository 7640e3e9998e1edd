"""Which failures of a log stand, and what their lines say together.

A message can be harmless: a later line may show that the runtime went on. Of those that
stand the first in the dialect's order decides; others of its kind add what it leaves open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from autofit.runtime.dialect.failure_pattern import FailureKind, FailurePattern
from autofit.trial.outcome import Buffer, Stage, Where
from autofit.units import MIB

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Finding:
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

    def finding(self) -> Finding | None:
        """The failure that stands, if any."""
        standing = {**self._open, **self._sealed}
        hits = [standing[number] for number in sorted(standing)]
        first = next((hit for hit in hits if hit.pattern.kind is not None), None)
        if first is None or first.pattern.kind is None:
            return None
        kind = first.pattern.kind
        rest = [hit for hit in hits if hit is not first and hit.pattern.kind in {None, kind}]
        told = [first, *rest]
        return Finding(
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
