"""A candidate that was never launched, and because of what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Skipped, outcome_from_dict, outcome_to_dict
from autofit.trial.purpose import Phase


@dataclass(frozen=True, slots=True)
class SkippedCandidate:
    """A candidate that was never launched, and why."""

    candidate: Candidate
    outcome: Skipped
    phase: Phase
    layout: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON data."""
        return {
            "phase": self.phase,
            "layout": self.layout,
            "params": dict(self.candidate.params),
            "outcome": outcome_to_dict(self.outcome),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SkippedCandidate:
        """The inverse of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the data is not a skipped candidate.
        """
        outcome = outcome_from_dict(data["outcome"])
        if not isinstance(outcome, Skipped):
            msg = f"outcome {outcome.kind}"
            raise ValueError(msg)  # noqa: TRY004 - the data is at fault
        return cls(Candidate(data["params"]), outcome, data["phase"], data["layout"])
