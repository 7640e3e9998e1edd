"""The proof of what runs without tuning, in explicit settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofit.runtime.estimator import Estimator
from autofit.runtime.launch import RUNTIME_FIT
from autofit.trial.trial import Trial
from autofit.tuning.finalist_proof import why
from autofit.tuning.frozen import FROZEN, frozen_baseline
from autofit.tuning.prove import Finalist, Proof, prove
from autofit.tuning.runner import TrialRunner
from autofit.tuning.situation import Situation


@dataclass(frozen=True, slots=True)
class BaselineProof:
    """Proves the baseline of a run; `note` is told what the user should know of it."""

    situation: Situation
    runner: TrialRunner
    estimator: Estimator | None
    note: Callable[[str], None]

    def prove(self, baseline: Trial) -> Proof | None:
        """The proof of the baseline, None where it does not hold."""
        frozen = self._frozen(baseline)
        trial = prove(frozen, self.runner, self.situation)
        if trial.is_completed:
            return Proof(frozen, trial)
        words = own_choice(self.situation)
        self.note(f"{words} does not hold at full context: {why(trial)}")
        return None

    def _frozen(self, baseline: Trial) -> Finalist:
        """The baseline in explicit settings; as it is where its placement cannot be told."""
        candidate = frozen_baseline(self.situation, baseline, self.estimator)
        is_placed = not self.situation.devices or "n_gpu_layers" in candidate.params
        if is_placed or self.situation.baseline_params is not None:
            return Finalist(candidate, FROZEN)
        self.note(
            "this build has no llama-fit-params beside it, so what its own fit chose cannot be "
            "written out: the preset leaves the fit on"
        )
        return Finalist(baseline.candidate, RUNTIME_FIT)


def own_choice(situation: Situation) -> str:
    """What the baseline is, for a sentence."""
    is_given = situation.baseline_params is not None
    return "the command given with --baseline" if is_given else "the runtime's own choice"
