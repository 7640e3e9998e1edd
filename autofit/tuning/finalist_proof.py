"""The proofs of finalists, each made once; at the edge of memory before anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autofit.search.problem import Problem
from autofit.trial.outcome import is_memory_failure
from autofit.trial.trial import Trial
from autofit.tuning.preference import headroom_mib
from autofit.tuning.prove import Finalist, Proof, prove, prove_or_step_back
from autofit.tuning.runner import TrialRunner
from autofit.tuning.situation import Situation

# A device with less left is proven before rounds are spent on it: serving takes some MiB more
# than measuring, for the prompt cache. On a real card what kept 8 MiB with its context full
# died at the next prompt, and what kept 34 held.
_EDGE_MIB = 24.0


@dataclass(slots=True)
class FinalistProofs:
    """Proves finalists of a run.

    `note` is told what does not hold, `tell` what each launch showed. `fallen` are those that
    were the best until they wanted memory at full context.
    """

    situation: Situation
    runner: TrialRunner
    problem: Problem
    note: Callable[[str], None]
    tell: Callable[[Finalist, Trial], None] = lambda _, __: None
    fallen: list[Finalist] = field(default_factory=list)
    _known: dict[str, Proof | None] = field(default_factory=dict)
    _launched: dict[str, Trial] = field(default_factory=dict)

    def proof(self, finalist: Finalist) -> Proof | None:
        """The proof of a finalist, or of one that steps back from it; None where none holds."""
        key = finalist.candidate.key
        if key in self._known:
            return self._known[key]
        is_new = key not in self._launched
        proof = prove_or_step_back(finalist, self._launch, self.problem)
        if proof is None and is_new:
            self.note(f"a finalist does not hold at full context: {why(self.runner.trials[-1])}")
        self._known[key] = proof
        return proof

    def falls(self, finalist: Finalist) -> bool:
        """Whether the finalist wants memory at full context, as a launch shows just now."""
        if finalist.candidate.key in self._launched:
            return False
        trial = self._launch(finalist)
        if not is_memory_failure(trial.outcome):
            return False
        self.fallen.append(finalist)
        self.note(
            f"#{trial.number}: the fastest so far does not hold at full context ({why(trial)}); "
            "the search goes on without it"
        )
        return True

    def off_the_edge(self, finalist: Finalist) -> Finalist | None:
        """The finalist, stepped back where it is at the edge of memory; None where none holds.

        The fastest is often the one that leaves a device next to nothing: it is proven before
        rounds are spent on it, and what holds takes its place.
        """
        if not self.is_at_the_edge(finalist):
            return finalist
        proof = self.proof(finalist)
        if proof is None:
            return None
        if proof.steps_back:
            self.note(stepped_back(proof))
        kept = proof.finalist
        for one in (finalist, kept):
            self._known[one.candidate.key] = Proof(kept, proof.trial)
        return kept

    def _launch(self, finalist: Finalist) -> Trial:
        """The proof's launch, made once."""
        key = finalist.candidate.key
        if key not in self._launched:
            self._launched[key] = prove(finalist, self.runner, self.situation)
            self.tell(finalist, self._launched[key])
        return self._launched[key]

    def is_at_the_edge(self, finalist: Finalist) -> bool:
        """Whether the finalist's launches left a device next to nothing."""
        launches = [t for t in self.runner.trials if t.candidate == finalist.candidate]
        left_mib = headroom_mib(launches)
        return left_mib is not None and left_mib < _EDGE_MIB


def why(trial: Trial) -> str:
    """How a launch ended, in words."""
    return f"{trial.outcome.kind.replace('_', ' ')}: {trial.outcome.evidence}"


def stepped_back(proof: Proof) -> str:
    """How far a proof stepped back, in words."""
    layers = "1 layer" if proof.steps_back == 1 else f"{proof.steps_back} layers"
    return f"stepped back {layers} to hold at full context"
