"""The proofs of finalists, each made once; at the edge of memory before rounds are spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autofit.search.problem import Problem
from autofit.trial.trial import Trial
from autofit.tuning.confirm_phase import CONTENDERS
from autofit.tuning.preference import headroom_mib
from autofit.tuning.prove import Finalist, Proof, prove_or_step_back
from autofit.tuning.runner import TrialRunner
from autofit.tuning.situation import Situation

# A device with less left is proven before rounds are spent on it: serving takes some MiB more
# than measuring, for the prompt cache. On a real card what kept 8 MiB with its context full
# died at the next prompt, and what kept 34 held.
_EDGE_MIB = 24.0


@dataclass(slots=True)
class FinalistProofs:
    """Proves finalists of a run; `note` is told what does not hold."""

    situation: Situation
    runner: TrialRunner
    problem: Problem
    note: Callable[[str], None]
    _known: dict[str, Proof] = field(default_factory=dict)

    def proof(self, finalist: Finalist) -> Proof | None:
        """The proof of a finalist, or of one that steps back from it; None where none holds."""
        known = self._known.get(finalist.candidate.key)
        if known is not None:
            return known
        proof = prove_or_step_back(finalist, self.runner, self.situation, self.problem)
        if proof is None:
            last = self.runner.trials[-1]
            self.note(f"a finalist does not hold at full context: {why(last)}")
        return proof

    def off_the_edge(self, finalists: Sequence[Finalist]) -> list[Finalist]:
        """The finalists, those that would be confirmed stepped back from the edge of memory.

        The fastest is often the one that leaves a device next to nothing: it is proven before
        rounds are spent on it, and what holds takes its place.
        """
        settled: dict[str, Finalist] = {}
        for finalist in finalists:
            kept = finalist
            if len(settled) < CONTENDERS and self._is_at_the_edge(finalist):
                proof = self.proof(finalist)
                if proof is None:
                    continue
                if proof.steps_back:
                    self.note(stepped_back(proof))
                kept = proof.finalist
                self._known[kept.candidate.key] = Proof(kept, proof.trial)
            settled.setdefault(kept.candidate.key, kept)
        return list(settled.values())

    def _is_at_the_edge(self, finalist: Finalist) -> bool:
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
