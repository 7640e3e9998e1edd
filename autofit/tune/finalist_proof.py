"""The proofs of finalists, each made once; at the edge of memory before anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autofit.search.problem import Problem
from autofit.session.finalist import Finalist, Proof
from autofit.session.ranking import headroom_mib
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.outcome import lacks_device_memory
from autofit.trial.trial import Trial
from autofit.tune.prove import prove, prove_or_step_back

# A device with less left is proven before rounds are spent on it: serving takes some MiB more
# than measuring, for the prompt cache. On a real card what kept 8 MiB with its context full
# died at the next prompt, and what kept 34 held.
_EDGE_MIB = 24.0


@dataclass(slots=True)
class Prover:
    """Proves finalists of a run.

    `note` is told what does not hold, `tell` what each launch showed; `is_ruled_out` tells what
    needs at least as much of a device as something that failed for want of it. `fallen` are
    those that want a device's memory at full context and did not step back yet.
    """

    task: Task
    runner: TrialRunner
    problem: Problem
    note: Callable[[str], None]
    tell: Callable[[Finalist, Trial], None] = lambda _, __: None
    is_ruled_out: Callable[[Finalist], bool] = lambda _: False
    fallen: list[Finalist] = field(default_factory=list)
    _known: dict[str, Proof | None] = field(default_factory=dict)
    _launched: dict[str, Trial] = field(default_factory=dict)

    def proof(self, finalist: Finalist) -> Proof | None:
        """The proof of a finalist, or of one that steps back from it; None where none holds."""
        key = finalist.candidate.key
        if key in self._known:
            return self._known[key]
        proof = prove_or_step_back(finalist, self._launch, self.problem)
        if proof is None:
            self._note_failure(finalist)
        self._known[key] = proof
        return proof

    def _note_failure(self, finalist: Finalist) -> None:
        """Say once of a finalist that neither it nor a step back of it holds."""
        trial = self._launched.get(finalist.candidate.key)
        if trial is None:
            return  # what needs less was noted before
        if finalist in self.fallen:
            self.note(f"#{trial.number} does not hold with more layers in system RAM either")
            return
        steps = ", nor with more layers in system RAM" * lacks_device_memory(trial.outcome)
        words = f"a finalist does not hold at full context{steps}: {why(trial)}"
        self.note(f"#{trial.number}: {words}")

    def falls(self, finalist: Finalist, *, is_best: bool) -> bool:
        """Whether the finalist wants a device's memory at full context; nothing steps back."""
        if finalist.candidate.key in self._known:
            return False
        trial = self._launch(finalist)
        if trial is not None and not lacks_device_memory(trial.outcome):
            return False
        self.fallen.append(finalist)
        if trial is not None and is_best:
            self.note(
                f"#{trial.number}: the fastest so far does not hold at full context "
                f"({why(trial)}); the search goes on without it"
            )
        elif trial is not None:
            self.note(f"#{trial.number}: a finalist does not hold at full context: {why(trial)}")
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

    def _launch(self, finalist: Finalist) -> Trial | None:
        """The proof's launch, made once; None without one where it is ruled out."""
        key = finalist.candidate.key
        if key not in self._launched:
            if self.is_ruled_out(finalist):
                return None
            self._launched[key] = prove(finalist, self.runner, self.task)
            self.tell(finalist, self._launched[key])
        return self._launched[key]

    def is_due(self, finalist: Finalist) -> bool:
        """Whether the finalist is at the edge of memory and yet to be proven."""
        key = finalist.candidate.key
        return self.is_at_the_edge(finalist) and key not in self._known | self._launched

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
