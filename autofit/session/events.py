"""Events of a run. They are only displayed and logged, and change nothing in the run.

A launch emits one LaunchStarted, any number of StageStarted, and one LaunchEnded.
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
    """The start of a phase. `max_launches` is None if only time limits the phase."""

    phase: Phase
    max_launches: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchStarted:
    """The start of a launch, before the server is started."""

    number: int
    purpose: TrialPurpose
    candidate: Candidate
    layout: str = ""


@dataclass(frozen=True, slots=True)
class StageStarted:
    """The start of a stage of a launch."""

    number: int
    stage: Stage


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """The end of a launch. Its trial is on disk; `is_reused` marks one from an earlier run."""

    trial: Trial
    is_reused: bool = False


@dataclass(frozen=True, slots=True)
class CandidateSkipped:
    """A candidate that will not be launched."""

    candidate: Candidate
    outcome: Skipped


@dataclass(frozen=True, slots=True)
class Incumbent:
    """A new incumbent, not confirmed yet. `gain` is its speedup over the baseline."""

    number: int
    candidate: Candidate
    metric: Metric
    value: float
    gain: float | None = None


@dataclass(frozen=True, slots=True)
class BoundaryMoved:
    """A change of a fit boundary: the fewest host layers known to fit, the most known to fail."""

    layout: str
    cache_type: str
    fits: int | None
    fails: int | None
    ubatch: int


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The end of a round. `leader` is the id of the fastest contender.

    `ratio` is the leader's speedup over the `baseline`, with an interval that is valid after
    every round. It is None if the baseline leads or does not exist.
    """

    number: int
    max_rounds: int
    leader: str | None
    ratio: Estimate | None = None
    baseline: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryRead:
    """The memory during a launch, emitted from a thread at most twice a second."""

    reading: MemoryReading


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for the user, who need not do anything."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a run. `result` is the data that `--json` prints."""

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
