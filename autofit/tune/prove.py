"""Proofs of finalists: launches of the exact command that will be served, at full context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autofit.runtime.server.request_plan import plan_proof
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS
from autofit.session.finalist import Finalist, Proof
from autofit.session.ranking import headroom_mib
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.outcome import describe_outcome, lacks_device_memory
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial
from autofit.tune.explore import Exploration

# A candidate that runs the workload but not the full context lacks a little memory. Each step
# adds one host layer.
_MOST_STEPS_BACK = 4
# A finalist that leaves less free on a device is proven before its rounds, because serving takes
# some MiB more than measuring, for the prompt cache. On a real card a server with 8 MiB left at
# full context died at the next prompt; a server with 34 MiB left ran.
_SMALL_HEADROOM_MIB = 24.0


def launch_proof(finalist: Finalist, task: Task, runner: TrialRunner) -> Trial:
    """Launch the exact command that will be served, and fill its context twice."""
    return runner.run(
        TrialPurpose("prove", "proof"),
        finalist.candidate,
        plan_proof(task.workload, task.workload.slot_context),
        layout=finalist.layout,
        is_verbatim=finalist.is_verbatim,
    )


@dataclass(slots=True)
class Prover:
    """A prover of a tune's finalists. It launches each proof once.

    Every launch is added to the exploration, so that a continued search uses it.

    Attributes:
        out_of_memory: finalists that ran out of device memory at full context, and that no
            candidate with more host layers has replaced yet.
    """

    task: Task
    runner: TrialRunner
    exploration: Exploration
    out_of_memory: list[Finalist] = field(default_factory=list)
    _proofs: dict[str, Proof | None] = field(default_factory=dict)
    _trials: dict[str, Trial] = field(default_factory=dict)

    def prove(self, finalist: Finalist) -> Proof | None:
        """Prove a finalist, or else the next one with more host layers that can be proven."""
        key = finalist.candidate.key
        if key in self._proofs:
            return self._proofs[key]
        proof = self._prove_or_step_back(finalist)
        if proof is None:
            self._note_failure(finalist)
        self._proofs[key] = proof
        return proof

    def prove_if_tight(self, finalist: Finalist) -> Finalist | None:
        """Prove a finalist with little headroom before its rounds; return it or a replacement.

        The fastest candidate often leaves almost no memory free on a device. A finalist with
        headroom is returned without a proof. The result is None if neither the finalist nor a
        candidate with more host layers can be proven.
        """
        if not self.is_tight(finalist):
            return finalist
        proof = self.prove(finalist)
        if proof is None:
            return None
        if proof.steps_back:
            self.runner.note(describe_steps_back(proof))
        proven = proof.finalist
        for one in (finalist, proven):
            self._proofs[one.candidate.key] = Proof(proven, proof.trial)
        return proven

    def fails_proof(self, finalist: Finalist, *, is_best: bool) -> bool:
        """Return whether a finalist is out of device memory at full context; try no steps back."""
        if finalist.candidate.key in self._proofs:
            return False
        trial = self._launch(finalist)
        if trial is not None and not lacks_device_memory(trial.outcome):
            return False
        self.out_of_memory.append(finalist)
        if trial is not None:
            reason = describe_outcome(trial.outcome)
            self.runner.note(
                f"#{trial.number}: the fastest so far does not run at full context "
                f"({reason}); the search continues without it"
                if is_best
                else f"#{trial.number}: a finalist does not run at full context: {reason}"
            )
        return True

    def is_tight(self, finalist: Finalist) -> bool:
        """Return whether the finalist's launches left almost no memory free on a device."""
        launches = [t for t in self.runner.trials if t.candidate == finalist.candidate]
        left_mib = headroom_mib(launches)
        return left_mib is not None and left_mib < _SMALL_HEADROOM_MIB

    def has_result(self, finalist: Finalist) -> bool:
        """Return whether the finalist's proof was launched."""
        key = finalist.candidate.key
        return key in self._proofs or key in self._trials

    def _prove_or_step_back(self, finalist: Finalist) -> Proof | None:
        for steps, one in enumerate((finalist, *self._steps_back(finalist))):
            trial = self._launch(one)
            if trial is None:
                continue
            if trial.is_completed:
                return Proof(one, trial, steps)
            if not lacks_device_memory(trial.outcome):
                return None  # more host layers would need even more host memory
        return None

    def _steps_back(self, finalist: Finalist) -> Iterator[Finalist]:
        """Yield the finalist with one more host layer, with two more, and so on."""
        problem, point = self.exploration.problem, finalist.point
        if point is None or HOST_LAYERS_AXIS not in point:
            return
        first = int(point[HOST_LAYERS_AXIS]) + 1
        last = min(first + _MOST_STEPS_BACK, problem.most_host_layers + 1)
        for host_layers in range(first, last):
            smaller = {**point, HOST_LAYERS_AXIS: host_layers}
            candidate = problem.candidate_of(smaller)
            if candidate is not None:
                yield Finalist(candidate, str(point.get(LAYOUT_AXIS, "")), smaller)

    def _launch(self, finalist: Finalist) -> Trial | None:
        """Launch the proof once, or return None if an earlier failure rules it out."""
        key = finalist.candidate.key
        if key not in self._trials:
            if self.exploration.is_ruled_out(finalist):
                return None
            self._trials[key] = launch_proof(finalist, self.task, self.runner)
            self.exploration.add_proof(finalist, self._trials[key])
        return self._trials[key]

    def _note_failure(self, finalist: Finalist) -> None:
        """Note that neither the finalist nor one with more host layers can be proven."""
        trial = self._trials.get(finalist.candidate.key)
        if trial is None:
            return  # the failure that rules it out was already noted
        if finalist in self.out_of_memory:
            self.runner.note(
                f"#{trial.number} does not run at full context with more layers in system RAM "
                "either"
            )
            return
        steps = ", nor with more layers in system RAM" * lacks_device_memory(trial.outcome)
        reason = describe_outcome(trial.outcome)
        self.runner.note(
            f"#{trial.number}: a finalist does not run at full context{steps}: {reason}"
        )


def describe_steps_back(proof: Proof) -> str:
    """Return a note on the additional host layers that a proof needed."""
    layers = "1 layer" if proof.steps_back == 1 else f"{proof.steps_back} layers"
    return f"stepped back {layers} to run at full context"
