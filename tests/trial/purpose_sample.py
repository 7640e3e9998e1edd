"""Purposes of trials, for tests that care about the phase alone."""

from __future__ import annotations

from typing import Any

from autofit.trial.purpose import Phase, Role, TrialPurpose

_USUAL_ROLES: dict[Phase, Role] = {
    "baseline": "baseline",
    "boundary": "explore",
    "search": "explore",
    "confirm": "round",
    "prove": "proof",
}


def purpose_of(phase: Phase, **fields: Any) -> TrialPurpose:
    """The usual purpose of a launch of that phase."""
    return TrialPurpose(phase, **{"role": _USUAL_ROLES[phase], **fields})
