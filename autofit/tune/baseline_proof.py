"""The proof of what runs without tuning, in explicit settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofit.runtime.planner.planner import RuntimePlanner
from autofit.session.finalist import FROZEN, RUNTIME_FIT, Finalist, Proof
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.trial import Trial
from autofit.tune.finalist_proof import why
from autofit.tune.frozen import frozen_baseline
from autofit.tune.prove import prove


@dataclass(frozen=True, slots=True)
class BaselineProof:
    """Proves the baseline of a run; `note` is told what the user should know of it."""

    task: Task
    runner: TrialRunner
    estimator: RuntimePlanner | None
    note: Callable[[str], None]

    def prove(self, baseline: Trial) -> Proof | None:
        """The proof of the baseline, None where it does not hold."""
        frozen = self._frozen(baseline)
        trial = prove(frozen, self.runner, self.task)
        if trial.is_completed:
            return Proof(frozen, trial)
        words = own_choice(self.task)
        self.note(f"{words} does not hold at full context: {why(trial)}")
        return None

    def _frozen(self, baseline: Trial) -> Finalist:
        """The baseline in explicit settings; as it is where its placement cannot be told."""
        candidate = frozen_baseline(self.task, baseline, self.estimator)
        is_placed = not self.task.devices or "n_gpu_layers" in candidate.params
        if is_placed or self.task.baseline_params is not None:
            return Finalist(candidate, FROZEN, is_baseline=True)
        self.note(
            "this build has no llama-fit-params beside it, so what its own fit chose cannot be "
            "written out: the preset leaves the fit on"
        )
        return Finalist(baseline.candidate, RUNTIME_FIT, is_verbatim=True, is_baseline=True)


def own_choice(task: Task) -> str:
    """What the baseline is, for a sentence."""
    is_given = task.baseline_params is not None
    return "the command given with --baseline" if is_given else "the runtime's own choice"
