"""What a tune tells while it runs; outputs listen, the tune does not know them.

A launch is told as LaunchStarted, any number of StageStarted, LaunchEnded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autofit.statistics.estimate import Estimate
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import MemoryReading
from autofit.trial.metric import Metric
from autofit.trial.outcome import Skipped, Stage
from autofit.trial.purpose import Phase, TrialPurpose
from autofit.trial.trial import Trial


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """A phase begins; `max_launches` is None where only time limits it."""

    phase: Phase
    max_launches: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchStarted:
    """A server is about to be started."""

    number: int
    purpose: TrialPurpose
    candidate: Candidate
    layout: str = ""


@dataclass(frozen=True, slots=True)
class StageStarted:
    """The launch under way has come to a stage."""

    number: int
    stage: Stage


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """A launch is over and its trial is on disk; `is_reused` when it was there already."""

    trial: Trial
    is_reused: bool = False


@dataclass(frozen=True, slots=True)
class CandidateSkipped:
    """A candidate will not be launched."""

    candidate: Candidate
    outcome: Skipped


@dataclass(frozen=True, slots=True)
class Incumbent:
    """A new best so far, unconfirmed; `gain` is how many times faster than the baseline."""

    number: int
    candidate: Candidate
    metric: Metric
    value: float
    gain: float | None = None


@dataclass(frozen=True, slots=True)
class BoundaryMoved:
    """What is known of a fit boundary: fewest host layers that fit, most that fail."""

    layout: str
    cache_type: str
    fits: int | None
    fails: int | None
    ubatch: int


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """A round of a confirmation is over; `leader` is the id of the fastest contender.

    `ratio` is how many times faster it is than the `baseline`, its interval valid at every
    look; None where the baseline leads, or there is none.
    """

    number: int
    max_rounds: int
    leader: str | None
    ratio: Estimate | None = None
    baseline: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryRead:
    """Memory while a launch is under way; told from a thread, twice a second at most."""

    reading: MemoryReading


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know, and need not do anything about."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The tune is over; `result` is what `tune --json` prints."""

    result: Mapping[str, Any]


Event = (
    PhaseStarted
    | LaunchStarted
    | StageStarted
    | LaunchEnded
    | CandidateSkipped
    | Incumbent
    | BoundaryMoved
    | RoundEnded
    | MemoryRead
    | Notice
    | Finished
)
Listener = Callable[[Event], None]
