"""The mark of a launch under way, so that a crash of the machine is remembered as one.

| state at resume                    | what it means              | then                      |
| ---------------------------------- | -------------------------- | ------------------------- |
| mark and trial                     | killed between two steps   | the trial counts          |
| mark only, booted since            | the machine went down      | a crashed trial           |
| mark only, not booted since        | autofit alone was killed   | may be tried again        |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Crashed
from autofit.trial.purpose import PHASES, TrialPurpose
from autofit.trial.trial import Trial

MACHINE_WENT_DOWN = "the machine or autofit went down during this launch"


def boot_id() -> str:
    """A text that is the same until the machine is started anew."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        # Off Linux: the clock may be adjusted by seconds, no machine boots twice in minutes.
        return f"booted-{round(psutil.boot_time() / 300)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMark:
    """A launch that has begun and, as long as the mark is there, not ended."""

    number: int
    purpose: TrialPurpose
    candidate: Candidate
    layout: str
    is_verbatim: bool
    argv: tuple[str, ...]
    env: Mapping[str, str]
    started_at: float
    boot_id: str

    def to_dict(self) -> dict[str, Any]:
        """The mark as JSON data."""
        return {
            "number": self.number,
            **self.purpose.to_dict(),
            "params": dict(self.candidate.params),
            "layout": self.layout,
            "is_verbatim": self.is_verbatim,
            "argv": list(self.argv),
            "env": dict(self.env),
            "started_at": self.started_at,
            "boot_id": self.boot_id,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunningMark:
        """The inverse of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the data is not a mark.
        """
        if data["phase"] not in PHASES:
            msg = f"unknown phase {data['phase']!r}"
            raise ValueError(msg)
        return cls(
            number=data["number"],
            purpose=TrialPurpose.from_dict(data),
            candidate=Candidate(data["params"]),
            layout=data["layout"],
            is_verbatim=data["is_verbatim"],
            argv=tuple(data["argv"]),
            env=dict(data["env"]),
            started_at=data["started_at"],
            boot_id=data["boot_id"],
        )

    def crashed_trial(self) -> Trial:
        """The trial this launch becomes when the machine went down with it."""
        return Trial(
            number=self.number,
            purpose=self.purpose,
            candidate=self.candidate,
            outcome=Crashed(stage="load", evidence=MACHINE_WENT_DOWN),
            layout=self.layout,
            is_verbatim=self.is_verbatim,
            argv=self.argv,
            env=self.env,
            started_at=self.started_at,
        )
