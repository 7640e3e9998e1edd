"""What the launches of a candidate have shown, proofs and answers left aside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from autofit.session.requirement import are_kept
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement
from autofit.trial.metric import cost, median_metric
from autofit.trial.trial import Trial


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """Reads the launches of a run; `trials` may grow."""

    task: Task
    trials: Sequence[Trial]

    def cost(self, candidate: Candidate) -> float:
        """What a candidate cost in the middle of all its launches, infinite without any."""
        task = self.task
        values = [
            median_metric(measured, task.workload, task.objective)
            for measured in self.measurements(candidate)
        ]
        known = [cost(value, task.objective) for value in values if value is not None]
        return median(known) if known else math.inf

    def keeps(self, candidate: Candidate) -> bool:
        """Whether a candidate keeps what the user requires."""
        task = self.task
        measured = self.measurements(candidate)
        return are_kept(task.requirements, measured, task.workload)

    def measurements(self, candidate: Candidate) -> list[Measurement]:
        """What the launches of a candidate measured."""
        return [
            trial.measurement
            for trial in self.trials
            if trial.candidate == candidate
            and trial.is_completed
            and not trial.shows_fit_only
            and trial.phase != "prove"
            and trial.measurement is not None
        ]
