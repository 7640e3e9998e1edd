"""A runtime's failure messages, as written in a dialect file and as used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from autofit.runtime.log_pattern import LinePattern, LinePatternFile, LineText
from autofit.trial.outcome import Buffer, CrashedReason, RejectedReason, Stage, Where

FailureKind = Literal["out_of_memory", "spilled", "rejected", "timed_out", "incorrect", "crashed"]

_REASONS = {"rejected": get_args(RejectedReason), "crashed": get_args(CrashedReason)}


class FailurePatternFile(LinePatternFile):
    """A failure message as written in a dialect file.

    `kind` is what came of the launch; without one the line only adds its values to the
    failure that another line shows. Values are given here or by named groups of `match`:
    `buffer_type` (the runtime's name of a buffer type, tells device and where), `device`,
    `index` (a device's number), `bytes`, `mib`. `cancelled_by` are texts of later lines that
    show that the failure did no harm.
    """

    name: str
    kind: FailureKind | None = None
    where: Where | None = None
    buffer: Buffer | None = None
    stage: Stage | None = None
    device: str | None = None
    reason: RejectedReason | CrashedReason | None = None
    cancelled_by: tuple[LineText, ...] = ()
    advice: tuple[str, ...] = Field(default=())

    @model_validator(mode="after")
    def _fields_belong_to_kind(self) -> Self:
        if self.kind in _REASONS and self.reason and self.reason not in _REASONS[self.kind]:
            raise ValueError(f"'{self.reason}' is no reason of '{self.kind}'")
        if self.kind not in (None, "out_of_memory") and (self.where or self.buffer):
            raise ValueError(f"'where' and 'buffer' tell nothing of '{self.kind}'")
        return self


@dataclass(frozen=True, slots=True)
class FailurePattern:
    """A failure message; see `FailurePatternFile`."""

    name: str
    line: LinePattern
    kind: FailureKind | None = None
    where: Where | None = None
    buffer: Buffer | None = None
    stage: Stage | None = None
    device: str | None = None
    reason: str | None = None
    cancelled_by: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @classmethod
    def of(cls, file: FailurePatternFile) -> Self:
        """The pattern that a dialect file describes."""
        return cls(
            name=file.name,
            line=LinePattern(file.has, re.compile(file.match) if file.match else None),
            kind=file.kind,
            where=file.where,
            buffer=file.buffer,
            stage=file.stage,
            device=file.device,
            reason=file.reason,
            cancelled_by=file.cancelled_by,
            advice=file.advice,
        )

    def groups(self, text: str) -> Mapping[str, str] | None:
        """The named groups found in a line, None where the line is of another kind."""
        return self.line.groups(text)
