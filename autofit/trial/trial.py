"""A finished launch: its candidate, purpose, outcome and measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement
from autofit.trial.outcome import Outcome, outcome_from_dict, outcome_to_dict
from autofit.trial.purpose import Phase, TrialPurpose

# How much a launch measures, the cheapest first: only the runtime's planner is asked; the model
# loads and processes its first full ubatches; short requests; the whole workload.
Fidelity = Literal["estimate", "load", "short", "full"]
FIDELITIES: tuple[Fidelity, ...] = ("estimate", "load", "short", "full")


@dataclass(frozen=True, slots=True)
class Overhead:
    """The time between two launches.

    `questions` were put to the runtime's planner and took `questions_s`; `own_s` are the
    seconds of autofit's own computing.
    """

    questions: int = 0
    questions_s: float = 0.0
    own_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that was launched once, and the outcome.

    Attributes:
        layout: the name of the layout (`balanced`, `single:CUDA0`, ...).
        is_verbatim: the command was launched as a user would without autofit: the runtime
            places layers, and nothing was added that only measuring needs.
        started_at: seconds since the epoch.
        seconds: the whole time from start to stop.
        notes: remarks for the user ("memory did not come back within 30 s").
        fidelity, overhead: None in studies of versions that did not record them.
    """

    number: int
    purpose: TrialPurpose
    candidate: Candidate
    outcome: Outcome
    layout: str = ""
    is_verbatim: bool = False
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    measurement: Measurement | None = None
    started_at: float = 0.0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    fidelity: Fidelity | None = None
    overhead: Overhead | None = None

    @property
    def phase(self) -> Phase:
        """The phase of the run that launched it."""
        return self.purpose.phase

    @property
    def description(self) -> str:
        """The purpose as a short text for people."""
        return self.purpose.description

    @property
    def is_completed(self) -> bool:
        """The launch completed all its requests."""
        return self.outcome.kind == "completed"

    @property
    def spent_s(self) -> float:
        """Seconds since the end of the previous launch, including the overhead before this one."""
        before = self.overhead or Overhead()
        return self.seconds + before.questions_s + before.own_s

    @property
    def shows_fit_only(self) -> bool:
        """The launch was a test of fit alone, and the candidate fits."""
        return self.is_completed and self.fidelity == "load"

    def to_dict(self) -> dict[str, Any]:
        """Return the trial as JSON data."""
        return {
            "number": self.number,
            **self.purpose.to_dict(),
            "layout": self.layout,
            "is_verbatim": self.is_verbatim,
            "params": dict(self.candidate.params),
            "argv": list(self.argv),
            "env": dict(self.env),
            "outcome": outcome_to_dict(self.outcome),
            "measurement": self.measurement.to_dict() if self.measurement else None,
            "started_at": self.started_at,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "fidelity": self.fidelity,
            "preparation": asdict(self.overhead) if self.overhead else None,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trial:
        """Return the trial from the data of `to_dict`.

        Raises:
            KeyError, TypeError: the data is not a trial.
        """
        measured, overhead = data["measurement"], data.get("preparation")
        return cls(
            number=data["number"],
            purpose=TrialPurpose.from_dict(data),
            layout=data.get("layout", ""),
            is_verbatim=data.get("is_verbatim", False),
            candidate=Candidate(data["params"]),
            argv=tuple(data["argv"]),
            env=data["env"],
            outcome=outcome_from_dict(data["outcome"]),
            measurement=Measurement.from_dict(measured) if measured else None,
            started_at=data["started_at"],
            seconds=data["seconds"],
            notes=tuple(data.get("notes", ())),
            fidelity=data.get("fidelity"),
            overhead=Overhead(**overhead) if overhead else None,
        )
