"""The outcome of a launch, as a tagged union in which every failure is a value.

| kind          | means                                                                  |
| ------------- | ---------------------------------------------------------------------- |
| completed     | loaded, answered, and the answers were plausible                       |
| out_of_memory | an allocation was refused, or the process died for lack of memory       |
| spilled       | ran, but memory meant for a device went to the host                    |
| rejected      | the runtime refused a setting, or silently changed it                  |
| timed_out     | a stage took longer than its limit                                     |
| incorrect     | answered, but with nonsense or an impossible speed                     |
| crashed       | died or failed for another reason                                      |
| skipped       | never launched: dominated by a failure, or the estimate is certain     |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, get_args

Stage = Literal["plan", "load", "context", "warmup", "prompt", "generate", "stop"]
Where = Literal["device", "host", "pinned"]
Buffer = Literal["weights", "kv", "recurrent", "compute", "pool"]
RejectedReason = Literal[
    "unknown_flag", "bad_value", "combination", "model_file", "not_applied", "context_exceeded"
]
CrashedReason = Literal[
    "port_in_use", "device_in_use", "device_lost", "illegal_instruction", "killed", "hang"
]


@dataclass(frozen=True, slots=True)
class Completed:
    """Loaded, answered, and the answers were plausible."""

    kind: ClassVar[str] = "completed"
    stage: Stage = "stop"
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The stage of a launch that failed, and the evidence for people."""

    stage: Stage
    evidence: str


@dataclass(frozen=True, slots=True)
class OutOfMemory(_Failure):
    """An allocation was refused, or the process died for lack of memory.

    `device` has the name in the runtime's device list; `requested_mib` is None if the log does
    not contain it.
    """

    kind: ClassVar[str] = "out_of_memory"
    where: Where = "device"
    buffer: Buffer | None = None
    device: str | None = None
    requested_mib: float | None = None


@dataclass(frozen=True, slots=True)
class Spilled(_Failure):
    """Ran, but memory meant for a device went to the host; `spilled_mib` is None if unknown."""

    kind: ClassVar[str] = "spilled"
    device: str | None = None
    spilled_mib: float | None = None


@dataclass(frozen=True, slots=True)
class Rejected(_Failure):
    """The runtime refused a setting, or silently changed it."""

    kind: ClassVar[str] = "rejected"
    reason: RejectedReason | None = None


@dataclass(frozen=True, slots=True)
class TimedOut(_Failure):
    """A stage took longer than its limit."""

    kind: ClassVar[str] = "timed_out"
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Incorrect(_Failure):
    """Answered, but with nonsense or an impossible speed."""

    kind: ClassVar[str] = "incorrect"


@dataclass(frozen=True, slots=True)
class Crashed(_Failure):
    """Died or failed for a reason that is not memory; negative `exit_status` is a signal."""

    kind: ClassVar[str] = "crashed"
    reason: CrashedReason | None = None
    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Never launched; `because` is the key of the candidate whose failure rules it out."""

    kind: ClassVar[str] = "skipped"
    evidence: str
    stage: Stage = "plan"
    because: str | None = None


Outcome = Completed | OutOfMemory | Spilled | Rejected | TimedOut | Incorrect | Crashed | Skipped

_BY_KIND: dict[str, type[Outcome]] = {outcome.kind: outcome for outcome in get_args(Outcome)}


def outcome_to_dict(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as JSON data, its kind first."""
    return {"kind": outcome.kind, **asdict(outcome)}


def outcome_from_dict(data: Mapping[str, Any]) -> Outcome:
    """Return the outcome from the data of `outcome_to_dict`.

    Raises:
        KeyError: the kind is not known.
        TypeError: a field is missing or not known.
    """
    fields = dict(data)
    return _BY_KIND[fields.pop("kind")](**fields)


def describe_outcome(outcome: Outcome) -> str:
    """Describe the outcome of a launch and its evidence as part of a sentence."""
    return f"{outcome.kind.replace('_', ' ')}: {outcome.evidence}"


def is_memory_failure(outcome: Outcome) -> bool:
    """Return whether the candidate needs more memory than there is."""
    return isinstance(outcome, OutOfMemory | Spilled)


def lacks_device_memory(outcome: Outcome) -> bool:
    """Return whether the candidate needs more memory than a device has."""
    if isinstance(outcome, OutOfMemory):
        return outcome.where == "device"
    return isinstance(outcome, Spilled)
