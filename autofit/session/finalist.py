"""Finalists, which are candidates that may be recommended, and their proofs."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.search.space import Point
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.trial import Trial

# Names of layouts that autofit does not compute: that of the runtime's own fit, and that of a
# baseline whose settings were written out.
RUNTIME_FIT = "runtime_fit"
FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class Finalist:
    """A candidate that may be recommended. `point` is None if the space does not contain it.

    `is_verbatim` is the same as in a trial. `is_baseline` marks the baseline, whether or not its
    settings were written out.
    """

    candidate: Candidate
    layout: str
    point: Point | None = None
    is_verbatim: bool = False
    is_baseline: bool = False


def baseline_finalist(task: Task) -> Finalist:
    """Return the baseline as a finalist, launched as its user would launch it."""
    return Finalist(task.baseline, RUNTIME_FIT, is_verbatim=True, is_baseline=True)


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof of a finalist: the trial in which it ran at full context.

    The finalist has `steps_back` host layers more than the one that should have been proven.
    """

    finalist: Finalist
    trial: Trial
    steps_back: int = 0
