"""Candidates that may be recommended, and their proofs."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.search.space import Point
from autofit.trial.candidate import Candidate
from autofit.trial.trial import Trial

# The layout name of a frozen baseline, which is launched with explicit settings and the fit off.
FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class Finalist:
    """A candidate that may become the recommendation; `point` None where it has none."""

    candidate: Candidate
    layout: str
    point: Point | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """A finalist that held, with the trial that shows it; `steps_back` from the one asked."""

    finalist: Finalist
    trial: Trial
    steps_back: int = 0
