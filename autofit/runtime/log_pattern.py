"""Patterns for the lines of a runtime's log, as written in a dialect file and as used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from autofit.trial.outcome import Stage


def _literal(text: str) -> str:
    # Lines that differ only in digits are looked at once, so a literal must hold no digit;
    # quotes and backslashes are written otherwise in JSON logs.
    if not text.strip():
        raise ValueError("must hold more than spaces")
    if re.search(r"[\d\"\\]", text):
        raise ValueError("must hold no digit, double quote or backslash; put them in `match`")
    return text


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return text


LineText = Annotated[str, AfterValidator(_literal)]
Expression = Annotated[str, AfterValidator(_expression)]


class LinePatternFile(BaseModel):
    """A kind of log line as written in a dialect file.

    `has` is text that every such line holds, or a list of which it holds one: the cheap
    test. `match` is a regular expression searched in the line; its named groups are values.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    has: Annotated[tuple[LineText, ...], Field(min_length=1)]
    match: Expression | None = None

    @field_validator("has", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


class StageMarkFile(LinePatternFile):
    """A line that shows that a launch has reached a stage."""

    stage: Stage


LineFiles = tuple[LinePatternFile, ...]


class LogPatternsFile(BaseModel):
    """The `log` section of a dialect file: which lines tell what."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stages: tuple[StageMarkFile, ...] = ()
    started: LineFiles = ()
    ready: LineFiles = ()
    answered: LineFiles = ()
    ended: LineFiles = ()
    child_ended: LineFiles = ()

    device: LineFiles = ()
    used_device: LineFiles = ()
    missing_device: LineFiles = ()
    offloaded: LineFiles = ()
    load_mode: LineFiles = ()
    buffer: LineFiles = ()
    context: LineFiles = ()
    kv_total: LineFiles = ()
    model: LineFiles = ()
    graph: LineFiles = ()
    pipeline_on: LineFiles = ()
    pipeline_retried: LineFiles = ()
    memory_row: LineFiles = ()
    fit: LineFiles = ()
    prompt_timing: LineFiles = ()
    generate_timing: LineFiles = ()
    moe_cache: LineFiles = ()
    notice: LineFiles = ()

    pinned_buffer: Expression = "_Host$"
    host_buffer: Expression = "^CPU"


@dataclass(frozen=True, slots=True)
class LinePattern:
    """A kind of log line; see `LinePatternFile`."""

    has: tuple[str, ...]
    match: re.Pattern[str] | None = None

    @classmethod
    def of(cls, file: LinePatternFile) -> Self:
        """The pattern that a dialect file describes."""
        return cls(file.has, re.compile(file.match) if file.match else None)

    def groups(self, text: str) -> Mapping[str, str] | None:
        """The named groups found in a line, None where the line is of another kind."""
        if not any(literal in text for literal in self.has):
            return None
        if self.match is None:
            return {}
        found = self.match.search(text)
        if found is None:
            return None
        return {name: value for name, value in found.groupdict().items() if value is not None}
