"""Candidates that may be recommended, and their proofs."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.search.space import Point
from autofit.trial.candidate import Candidate
from autofit.trial.trial import Trial

# Names of layouts that autofit does not compute: the runtime's own fit, and that of a baseline
# whose settings were written out.
RUNTIME_FIT = "runtime_fit"
FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class Finalist:
    """A candidate that may become the recommendation; `point` None where it has none.

    `is_verbatim` is as in a trial; `is_baseline` marks what runs without tuning, its settings
    written out or not.
    """

    candidate: Candidate
    layout: str
    point: Point | None = None
    is_verbatim: bool = False
    is_baseline: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    """A finalist that held, with the trial that shows it; `steps_back` from the one asked."""

    finalist: Finalist
    trial: Trial
    steps_back: int = 0
