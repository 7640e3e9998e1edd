"""The `log` and `failures` sections of a dialect file: kinds of log lines and their meaning.

Many facts about a launch are only in the server's log. `runners/llama_server.yaml` explains
every key; the code that reads logs is in `runtime/logs/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator

from autofit.trial.outcome import Buffer, CrashedReason, RejectedReason, Stage, Where


def _check_text(text: str) -> str:
    # Lines that differ only in digits share one lookup, so the text must not contain a digit.
    # JSON logs escape quotes and backslashes.
    if not text.strip():
        raise ValueError("must not be blank")
    if re.search(r"[\d\"\\]", text):
        raise ValueError("must contain no digit, double quote or backslash; put them in `match`")
    return text


def _check_regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regex: {error}: {text}") from error
    return text


def _make_tuple(value: object) -> object:
    if not value:
        raise ValueError("give at least one text")
    return (value,) if isinstance(value, str) else value


Regex = Annotated[str, AfterValidator(_check_regex)]
LineText = Annotated[str, AfterValidator(_check_text)]
LineTexts = Annotated[
    tuple[LineText, ...],
    BeforeValidator(_make_tuple, json_schema_input_type=str | tuple[str, ...]),
]


@dataclass(frozen=True, slots=True)
class LinePattern:
    """A pattern of log lines: they contain a text of `has`, and match the regex `match` if given.

    `has` is the fast test. Named groups of `match` are values.
    """

    has: LineTexts
    match: Regex | None = None


LinePatterns = tuple[LinePattern, ...]


@dataclass(frozen=True, slots=True)
class StageMark:
    """A line that shows that a launch has reached a stage."""

    stage: Stage
    has: LineTexts
    match: Regex | None = None


@dataclass(frozen=True, slots=True)
class BufferTypes:
    """Patterns of buffer type names that show where a buffer is.

    `remote` has the groups `endpoint`, a server, and `index`, the number of its device.
    """

    host: Regex | None = None
    pinned: Regex | None = None
    remote: Regex | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Lines that report the applied settings and the memory they use.

    Each named group of `values` is a fact under that name, and so is one of `latest`, whose
    last line counts. `refused` are allocations that failed, whether or not the runtime then
    continued; a line of `retried` gives the reason of those before it.
    """

    device: LinePatterns = ()
    used_device: LinePatterns = ()
    buffer: LinePatterns = ()
    memory_row: LinePatterns = ()
    values: LinePatterns = ()
    latest: LinePatterns = ()
    refused: LinePatterns = ()
    retried: LinePatterns = ()
    notice: LinePatterns = ()


@dataclass(frozen=True, slots=True)
class LogPatterns:
    """All kinds of lines that autofit uses, except failures.

    `stages` begin a stage. `signs` are printed within a stage: they count only if the beginning of
    the log is missing, and never return to an earlier stage. `frames` are lines of a backtrace.
    `errors` are lines of a chain of errors, whose first line gives the cause.
    """

    stages: tuple[StageMark, ...] = ()
    signs: tuple[StageMark, ...] = ()
    frames: tuple[StageMark, ...] = ()
    started: LinePatterns = ()
    fitted: LinePatterns = ()
    ready: LinePatterns = ()
    idle: LinePatterns = ()
    answered: LinePatterns = ()
    ended: LinePatterns = ()
    child_started: LinePatterns = ()
    child_ended: LinePatterns = ()
    harmless: LinePatterns = ()
    errors: LinePatterns = ()
    facts: Facts = field(default_factory=Facts)
    buffer_types: BufferTypes = field(default_factory=BufferTypes)


FailureKind = Literal["out_of_memory", "spilled", "rejected", "timed_out", "incorrect", "crashed"]
_REASONS = {"rejected": get_args(RejectedReason), "crashed": get_args(CrashedReason)}


@dataclass(frozen=True, slots=True)
class FailurePattern(LinePattern):
    """A failure message, its meaning, and the lines that show that it was harmless.

    A line without a `kind` only adds values to the failure that another line reports. Values are
    given here or by named groups of `match`: `buffer_type` (the runtime's name of a buffer type,
    which gives `where` and `device`), `index` (the number of a device), `bytes`, `mib`, and
    `status` (an exit status in hexadecimal, which gives the outcome). In `device`, `{name}` is the
    group of that name. `cancelled_by` are texts of later lines that show that the failure was
    harmless. `may_be_memory` marks a line without a cause: if a device was almost full, the cause
    was memory. `is_any_memory` marks a line that names host memory although a device may be full.
    `is_limit` marks an allocation that exceeds a limit of the driver. `advice_if_free` is added to
    `advice` if the device had enough free memory. `is_chain_end` marks the last line of a chain of
    errors, whose first line names the cause.
    """

    kind: FailureKind | None = None
    where: Where | None = None
    buffer: Buffer | None = None
    stage: Stage | None = None
    device: str | None = None
    reason: RejectedReason | CrashedReason | None = None
    cancelled_by: tuple[LineText, ...] = ()
    may_be_memory: bool = False
    is_any_memory: bool = False
    is_limit: bool = False
    is_chain_end: bool = False
    advice: tuple[str, ...] = ()
    advice_if_free: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        reasons = _REASONS.get(self.kind or "")
        if reasons and self.reason and self.reason not in reasons:
            raise ValueError(f"'{self.reason}' is not a reason of '{self.kind}'")
        if self.kind not in {None, "out_of_memory"} and (self.where or self.buffer):
            raise ValueError(f"'where' and 'buffer' do not apply to '{self.kind}'")
