"""A candidate that may be recommended, and its proof."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.search.space import Point
from autofit.session.task import Task
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


def baseline_finalist(task: Task) -> Finalist:
    """Return what runs without tuning, launched as its user would launch it."""
    return Finalist(task.baseline, RUNTIME_FIT, is_verbatim=True, is_baseline=True)


@dataclass(frozen=True, slots=True)
class Proof:
    """A finalist that runs at full context, with the trial that shows it.

    It has `steps_back` host layers more than the finalist that was to be proven.
    """

    finalist: Finalist
    trial: Trial
    steps_back: int = 0
