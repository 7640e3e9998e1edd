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
from typing import Any, get_args

import psutil

from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Crashed
from autofit.trial.trial import Phase, Trial

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
    phase: Phase
    candidate: Candidate
    layout: str
    purpose: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    started_at: float
    boot_id: str

    def to_dict(self) -> dict[str, Any]:
        """The mark as JSON data."""
        return {
            "number": self.number,
            "phase": self.phase,
            "params": dict(self.candidate.params),
            "layout": self.layout,
            "purpose": self.purpose,
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
        fields = dict(data)
        candidate = Candidate(fields.pop("params"))
        if fields["phase"] not in get_args(Phase):
            msg = f"unknown phase {fields['phase']!r}"
            raise ValueError(msg)
        return cls(
            **{
                **fields,
                "candidate": candidate,
                "argv": tuple(fields["argv"]),
                "env": dict(fields["env"]),
            }
        )

    def crashed_trial(self) -> Trial:
        """The trial this launch becomes when the machine went down with it."""
        return Trial(
            number=self.number,
            phase=self.phase,
            candidate=self.candidate,
            outcome=Crashed(stage="load", evidence=MACHINE_WENT_DOWN),
            layout=self.layout,
            argv=self.argv,
            env=self.env,
            started_at=self.started_at,
            purpose=self.purpose,
        )
