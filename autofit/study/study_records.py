"""Records of launches in progress, and of candidates that were skipped.

A mark exists while a launch is in progress, so that a resume notices a crash of the machine:

| state at resume                    | meaning                    | result                    |
| ---------------------------------- | -------------------------- | ------------------------- |
| mark and trial                     | killed between two steps   | the trial counts          |
| mark only, booted since            | the machine went down      | a crashed trial           |
| mark only, not booted since        | only autofit was killed    | may be tried again        |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Crashed, Skipped, outcome_from_dict, outcome_to_dict
from autofit.trial.purpose import Phase
from autofit.trial.trial import Trial

# The outcome of a launch that was in progress when the machine went down.
LOST_LAUNCH = Crashed(stage="load", evidence="the machine or autofit went down during this launch")
_KNOWN_AFTERWARDS = {"outcome", "measurement", "seconds", "notes", "fidelity", "preparation"}


def boot_id() -> str:
    """Return a text that changes with each boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        # Not on Linux. The clock can be adjusted by seconds; no machine boots twice in minutes.
        return f"booted-{round(psutil.boot_time() / 300)}"


def mark_to_dict(trial: Trial) -> dict[str, Any]:
    """Return the mark of a launch as JSON data."""
    data = {key: value for key, value in trial.to_dict().items() if key not in _KNOWN_AFTERWARDS}
    return {**data, "boot_id": boot_id()}


def lost_trial_from_dict(data: Mapping[str, Any]) -> Trial:
    """Return the crashed trial of a launch that was in progress when the machine went down.

    Raises:
        KeyError, TypeError, ValueError: the data is not a mark.
    """
    unknown = {"outcome": outcome_to_dict(LOST_LAUNCH), "measurement": None, "seconds": 0.0}
    return Trial.from_dict({**data, **unknown})


@dataclass(frozen=True, slots=True)
class SkippedCandidate:
    """A candidate that was never launched, and the reason."""

    candidate: Candidate
    outcome: Skipped
    phase: Phase
    layout: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON data."""
        return {
            "phase": self.phase,
            "layout": self.layout,
            "params": dict(self.candidate.params),
            "outcome": outcome_to_dict(self.outcome),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SkippedCandidate:
        """Return the record from the data of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the data is not a skipped candidate.
        """
        outcome = outcome_from_dict(data["outcome"])
        if not isinstance(outcome, Skipped):
            msg = f"outcome {outcome.kind}"
            raise ValueError(msg)  # noqa: TRY004 - the data is at fault
        return cls(Candidate(data["params"]), outcome, data["phase"], data["layout"])
