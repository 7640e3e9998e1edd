"""Kinds of log lines: the `log` section of a dialect file.

Runtimes tell much of what they do only in their log. Which lines tell what is data; what is
done with it is in `server_log.py` and `failure.py`. `runners/llama_server.yaml` explains
every key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict

from autofit.trial.outcome import Buffer, CrashedReason, RejectedReason, Stage, Where

STRICT: ConfigDict = ConfigDict(extra="forbid")


def _text(text: str) -> str:
    # Lines that differ only in digits are looked at once, so the text must hold no digit;
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
        raise ValueError(f"not a regex: {error}: {text}") from error
    return text


def _some(value: object) -> object:
    if not value:
        raise ValueError("give at least one text")
    return (value,) if isinstance(value, str) else value


LineText = Annotated[str, AfterValidator(_text)]
Expression = Annotated[str, AfterValidator(_expression)]
LineTexts = Annotated[
    tuple[LineText, ...],
    BeforeValidator(_some, json_schema_input_type=str | tuple[str, ...]),
]


@dataclass(frozen=True, slots=True)
class LinePattern:
    """A kind of line: one of the texts `has` is in it, and the regex `match`, if any, too.

    `has` is the cheap test; named groups of `match` are values.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    has: LineTexts
    match: Expression | None = None


@dataclass(frozen=True, slots=True)
class StageMark:
    """A line that shows that a launch has reached a stage."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    stage: Stage
    has: LineTexts


LinePatterns = tuple[LinePattern, ...]


@dataclass(frozen=True, slots=True)
class BufferTypes:
    """How the runtime's names of buffer types tell where a buffer lies.

    `remote` has the groups `index` and `endpoint`: the how-manieth device of which server.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    host: Expression | None = None
    pinned: Expression | None = None
    remote: Expression | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The lines that tell what was applied and how much memory it takes.

    Each named group of `values` is a fact by that name; `refused` are allocations that were
    refused, whether the runtime then went on or not.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    device: LinePatterns = ()
    used_device: LinePatterns = ()
    missing_device: LinePatterns = ()
    buffer: LinePatterns = ()
    memory_row: LinePatterns = ()
    prompt_timing: LinePatterns = ()
    generate_timing: LinePatterns = ()
    values: LinePatterns = ()
    refused: LinePatterns = ()
    notice: LinePatterns = ()


@dataclass(frozen=True, slots=True)
class LogPatterns:
    """Every kind of line that is of use, failures apart."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    stages: tuple[StageMark, ...] = ()
    started: LinePatterns = ()
    fitted: LinePatterns = ()
    ready: LinePatterns = ()
    idle: LinePatterns = ()
    answered: LinePatterns = ()
    ended: LinePatterns = ()
    child_started: LinePatterns = ()
    child_ended: LinePatterns = ()
    harmless: LinePatterns = ()
    facts: Facts = field(default_factory=Facts)
    buffer_types: BufferTypes = field(default_factory=BufferTypes)


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
