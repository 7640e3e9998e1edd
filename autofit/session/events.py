"""Events of a run, for display and log alone; nothing is decided by them.

A launch is a LaunchStarted, any number of StageStarted, and a LaunchEnded.
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
    """The begin of a phase; `max_launches` is None if only time limits it."""

    phase: Phase
    max_launches: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchStarted:
    """The begin of a launch, before the server is started."""

    number: int
    purpose: TrialPurpose
    candidate: Candidate
    layout: str = ""


@dataclass(frozen=True, slots=True)
class StageStarted:
    """The begin of a stage of the launch."""

    number: int
    stage: Stage


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """The end of a launch, with its trial on disk; `is_reused` marks one that was there before."""

    trial: Trial
    is_reused: bool = False


@dataclass(frozen=True, slots=True)
class CandidateSkipped:
    """A candidate that will not be launched."""

    candidate: Candidate
    outcome: Skipped


@dataclass(frozen=True, slots=True)
class Incumbent:
    """A new best candidate, not confirmed yet; `gain` is its speedup over the baseline."""

    number: int
    candidate: Candidate
    metric: Metric
    value: float
    gain: float | None = None


@dataclass(frozen=True, slots=True)
class BoundaryMoved:
    """A fit boundary as known so far: the fewest host layers that fit, the most that fail."""

    layout: str
    cache_type: str
    fits: int | None
    fails: int | None
    ubatch: int


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The end of a round; `leader` is the id of the fastest contender.

    `ratio` is its speedup over the `baseline`, with an interval that is valid after every
    round; None if the baseline leads, or there is none.
    """

    number: int
    max_rounds: int
    leader: str | None
    ratio: Estimate | None = None
    baseline: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryRead:
    """Memory during a launch; emitted from a thread, at most twice a second."""

    reading: MemoryReading


@dataclass(frozen=True, slots=True)
class Notice:
    """A message that needs no action of the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a run; `result` is what `--json` prints."""

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
