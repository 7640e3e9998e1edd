"""A runtime's failure messages: the `failures` section of a dialect file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from pydantic import ConfigDict

from autofit.runtime.dialect.log_pattern import (
    STRICT,
    Expression,
    LinePattern,
    LineText,
    LineTexts,
)
from autofit.trial.outcome import Buffer, CrashedReason, RejectedReason, Stage, Where

FailureKind = Literal["out_of_memory", "spilled", "rejected", "timed_out", "incorrect", "crashed"]

_REASONS = {"rejected": get_args(RejectedReason), "crashed": get_args(CrashedReason)}


@dataclass(frozen=True, slots=True)
class FailurePattern:
    """A failure message, what it means, and what shows that it did no harm.

    Without a `kind` the line only adds its values to the failure that another line shows.
    Values are given here, or by named groups of `match`: `buffer_type` (the runtime's name
    of one: tells where and device), `index` (a device's number, also put for `{index}` in
    `device`), `bytes`, `mib`. `cancelled_by` are texts of later lines. `may_be_memory` says that
    the line tells no cause: on a device that was nearly full it was memory.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    has: LineTexts
    match: Expression | None = None
    kind: FailureKind | None = None
    where: Where | None = None
    buffer: Buffer | None = None
    stage: Stage | None = None
    device: str | None = None
    reason: RejectedReason | CrashedReason | None = None
    cancelled_by: tuple[LineText, ...] = ()
    may_be_memory: bool = False
    advice: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        reasons = _REASONS.get(self.kind or "")
        if reasons and self.reason and self.reason not in reasons:
            raise ValueError(f"'{self.reason}' is no reason of '{self.kind}'")
        if self.kind not in {None, "out_of_memory"} and (self.where or self.buffer):
            raise ValueError(f"'where' and 'buffer' tell nothing of '{self.kind}'")

    @property
    def line(self) -> LinePattern:
        """The kind of line alone."""
        return LinePattern(self.has, self.match)
