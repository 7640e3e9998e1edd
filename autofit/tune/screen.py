"""Which finalists meet the baseline in rounds: those that hold and whose KV type is good enough.

Rounds are the dearest part of a tune, so what can rule a finalist out comes before them: the
proof of one that leaves a device next to nothing, and the score of a KV type narrower than
f16, which is made once and holds for every placement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from autofit.model.sizes.kv_cache import kv_types
from autofit.quality.quality_gate import QualityGate
from autofit.session.budget_advice import proof_seconds
from autofit.session.events import Listener, PhaseStarted
from autofit.session.finalist import Finalist
from autofit.statistics.stopping_rule import MIN_ROUNDS
from autofit.tune.finalist_proof import Prover
from autofit.tune.race import CONTENDERS

# Launches of the runtime's own program for a score, and of the fewest rounds that tell
# anything: of the baseline and one candidate.
_PROGRAM_LAUNCHES = 2
_ROUND_LAUNCHES = 2 * MIN_ROUNDS


@dataclass(frozen=True, slots=True)
class Shortlist:
    """Settles the finalists of a run."""

    proofs: Prover
    verdicts: QualityGate
    emit: Listener

    def settle(self, finalists: Sequence[Finalist]) -> list[Finalist] | None:
        """The finalists without those ruled out, the ones to be confirmed settled.

        None as soon as a KV type is found poor or the best falls at full context: others may
        then be worth a launch. With nothing else left, what fell steps back until it holds.

        Raises:
            Interrupted: the user stopped the run.
        """
        settled: dict[str, Finalist] = {}
        is_best = True
        for finalist in finalists:
            if self.verdicts.is_poor(finalist.candidate) or finalist in self.proofs.fallen:
                continue
            if len(settled) >= CONTENDERS:
                settled.setdefault(finalist.candidate.key, finalist)
                continue
            if self.proofs.is_due(finalist):
                self.emit(PhaseStarted("prove"))
            if is_best and self._may_search and self._falls(finalist, is_best=True):
                return None
            # Only the best is worth launches for what holds in its place.
            if not is_best and self._falls(finalist, is_best=False):
                continue
            is_best = False
            kept = self.proofs.off_the_edge(finalist)
            if kept is None:
                continue
            if self._finds_poor(kept, finalists, self._leaves_time_for_rounds):
                return None
            settled.setdefault(kept.candidate.key, kept)
        return list(settled.values()) or self._stepped_back()

    @property
    def _may_search(self) -> bool:
        return self.proofs.runner.budget.allows("search", self._launch_s)

    def _falls(self, finalist: Finalist, *, is_best: bool) -> bool:
        """Whether the finalist is at the edge and wants memory at full context."""
        return self.proofs.is_at_the_edge(finalist) and self.proofs.falls(
            finalist, is_best=is_best
        )

    def _stepped_back(self) -> list[Finalist]:
        """The first that fell and holds with more layers on the host."""
        for fallen in self.proofs.fallen:
            if not self.verdicts.is_poor(fallen.candidate):
                kept = self.proofs.off_the_edge(fallen)
                if kept is not None:
                    return [kept]
        return []

    def look_ahead(self, finalists: Sequence[Finalist]) -> bool:
        """Whether the KV type of the best so far is poor, looked at while the search goes on.

        Raises:
            Interrupted: the user stopped the run.
        """
        safe = [one for one in finalists if not self.proofs.is_at_the_edge(one)]
        leader = finalists[0].candidate if finalists else None
        alike = [one for one in safe if leader and kv_types(one.candidate) == kv_types(leader)]
        return bool(alike) and self._finds_poor(alike[0], alike, self._leaves_time_for_search)

    def _finds_poor(
        self,
        finalist: Finalist,
        finalists: Sequence[Finalist],
        leaves_time: Callable[[Finalist], bool],
    ) -> bool:
        evaluator = self.verdicts.evaluator
        if evaluator is None or not self.verdicts.is_open(finalist.candidate):
            return False
        # Of those with this KV type, one that was asked already costs nothing.
        types = kv_types(finalist.candidate)
        asked = (
            one
            for one in finalists
            if kv_types(one.candidate) == types and evaluator.has_answers(one.candidate)
        )
        chosen = next(asked, None)
        if chosen is None and not leaves_time(finalist):
            return False
        self.emit(PhaseStarted("prove"))
        self.verdicts.score(chosen or finalist)
        return self.verdicts.is_poor(finalist.candidate)

    def _leaves_time_for_rounds(self, finalist: Finalist) -> bool:
        """Whether a score leaves time for rounds that tell something; these come first."""
        budget = self.proofs.runner.budget
        left_s = budget.left_for_s("confirm")
        needed_s = self._score_s(finalist) + _ROUND_LAUNCHES * self._launch_s
        return left_s is None or left_s >= needed_s

    def _leaves_time_for_search(self, finalist: Finalist) -> bool:
        """Whether a score takes no longer than the search may go on."""
        left_s = self.proofs.runner.budget.left_for_s("search")
        return left_s is None or left_s >= self._score_s(finalist)

    @property
    def _launch_s(self) -> float:
        return median([trial.seconds for trial in self.proofs.runner.trials] or [0.0])

    def _score_s(self, finalist: Finalist) -> float:
        """About how long a score takes."""
        evaluator, workload = self.verdicts.evaluator, self.proofs.task.workload
        if evaluator is None:
            return 0.0
        launches = [
            trial
            for trial in self.proofs.runner.trials
            if trial.candidate == finalist.candidate and trial.is_completed
        ]
        asked_s = max([self._launch_s, *(proof_seconds(trial, workload) for trial in launches)])
        servers = evaluator.servers_needed(finalist.candidate)
        return servers * asked_s + _PROGRAM_LAUNCHES * self._launch_s
