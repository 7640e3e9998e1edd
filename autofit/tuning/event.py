"""What a run tells whoever watches it; lower layers never print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autofit.trial.candidate import Candidate
from autofit.trial.trial import Phase, Trial


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """A phase has begun; `about` says what it will find out."""

    phase: Phase
    about: str


@dataclass(frozen=True, slots=True)
class LaunchStarted:
    """A launch is about to begin."""

    number: int
    phase: Phase
    candidate: Candidate
    layout: str
    purpose: str


@dataclass(frozen=True, slots=True)
class StageChanged:
    """The launch under way has come to another stage (`loading`, `request 2 of 7`)."""

    number: int
    stage: str


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """A launch is over; `value` is the objective's median, None where there is none.

    `is_reused` marks one that a resumed study had already measured.
    """

    trial: Trial
    value: float | None
    is_reused: bool = False


@dataclass(frozen=True, slots=True)
class Incumbent:
    """A better candidate than any before; `gain` is against the baseline, None without one."""

    trial: Trial
    value: float
    gain: float | None


@dataclass(frozen=True, slots=True)
class BoundaryMoved:
    """What is known of one fit boundary: fewest host layers that fit, most that fail."""

    layout: str
    cache_type: str
    fits: int | None
    fails: int | None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know; it ends nothing."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The run's result, as `--json` prints it."""

    result: Mapping[str, Any]


Event = (
    PhaseStarted
    | LaunchStarted
    | StageChanged
    | LaunchEnded
    | Incumbent
    | BoundaryMoved
    | Notice
    | Finished
)
Emit = Callable[[Event], None]
