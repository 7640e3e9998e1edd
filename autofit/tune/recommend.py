"""Which candidate is recommended: the fastest that is proven to hold and to answer well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autofit.model.sizes.kv_cache import format_kv_types, kv_types
from autofit.quality.quality_gate import QualityGate
from autofit.session.candidate_record import CandidateRecord
from autofit.session.finalist import Finalist, Proof
from autofit.session.ranking import Ranking
from autofit.session.task import Task
from autofit.statistics.estimate import Estimate
from autofit.trial.trial import Trial
from autofit.tune.baseline_proof import BaselineProof, own_choice
from autofit.tune.finalist_proof import Prover, stepped_back
from autofit.tune.race import Confirmer


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommender:
    """Proves candidates of a run, the fastest first, until one can be recommended."""

    task: Task
    trials: Sequence[Trial]
    confirmer: Confirmer
    proofs: Prover
    own_proof: BaselineProof
    verdicts: QualityGate
    note: Callable[[str], None]

    def recommend(
        self,
        baseline: Trial,
        finalists: Sequence[Finalist],
        confirmation: Ranking | None,
    ) -> tuple[Proof | None, Estimate | None]:
        """The proof of what is recommended and its gain over the baseline, None where unknown."""
        is_best = self._is_baseline_best(baseline, finalists, confirmation)
        if is_best:
            proof = self.own_proof.prove(baseline)
            if proof is not None:
                rounds = confirmation.rounds if confirmation else 0
                if not finalists:
                    self.note(self._nothing_else())
                elif confirmation and rounds:
                    self.note(self._led_words(confirmation))
                self._look_at_kv(baseline)
                return proof, Estimate(1.0, 1.0, 1.0, rounds)
        proven = self._prove_finalists(baseline, finalists, confirmation)
        if proven is not None:
            return proven
        if is_best or not baseline.is_completed:
            return None, None
        # Whatever was faster does not hold: what runs without tuning is still an answer.
        proof = self.own_proof.prove(baseline)
        if proof is None:
            return None, None
        self.note(f"nothing that is faster can be recommended, so {self._own_choice} is kept")
        self._look_at_kv(baseline)
        return proof, Estimate(1.0, 1.0, 1.0, 0)

    @property
    def _own_choice(self) -> str:
        return own_choice(self.task)

    @property
    def _record(self) -> CandidateRecord:
        return CandidateRecord(self.task, self.trials)

    def _led_words(self, confirmation: Ranking) -> str:
        """That nothing was faster than the baseline, and how surely."""
        unsure = len(confirmation.undecided)
        if not unsure:
            return f"{self._own_choice} was confirmed as the best found"
        rounds = f"{confirmation.rounds} round{'s' * (confirmation.rounds > 1)}"
        others = "1 candidate is" if unsure == 1 else f"{unsure} candidates are"
        return (
            f"{self._own_choice} did best in {rounds}, but {others} not told apart from the "
            "fastest: more rounds might tell"
        )

    def _nothing_else(self) -> str:
        """Why nothing but the baseline can be recommended."""
        tried = [trial for trial in self.trials if trial.phase in {"boundary", "search"}]
        if any(trial.is_completed for trial in tried):
            return "nothing else that ran can be recommended"
        if tried:
            return f"nothing else ran: {len(tried)} other launches failed"
        return "nothing else was tried: a larger --budget or --max-launches may tell more"

    def _look_at_kv(self, baseline: Trial) -> None:
        """Say where what is kept has KV types that nothing else is recommended with."""
        if self.verdicts.is_poor(baseline.candidate):
            types = format_kv_types(kv_types(baseline.candidate))
            self.note(
                f"{self._own_choice} has KV {types}, too: it is kept as "
                "what runs today, not for its answers"
            )

    def _prove_finalists(
        self,
        baseline: Trial,
        finalists: Sequence[Finalist],
        confirmation: Ranking | None,
    ) -> tuple[Proof, Estimate | None] | None:
        """The first finalist that holds and answers well, with its gain."""
        by_id = {finalist.candidate.key: finalist for finalist in finalists}
        for key in _order(by_id, confirmation):
            if self.verdicts.is_poor(by_id[key].candidate):
                continue
            proof = self.proofs.proof(by_id[key])
            if proof is None or not self.verdicts.accepts(proof):
                continue
            if proof.steps_back:
                self.note(stepped_back(proof))
                again = self.confirmer.confirm(baseline, [proof.finalist])
                return proof, _gain(again, proof.finalist.candidate.key)
            if confirmation is not None and not confirmation.has(key):
                # It was not in the rounds, and those that were cannot be recommended.
                confirmation = self.confirmer.confirm(baseline, [proof.finalist])
            return proof, _gain(confirmation, key)
        self.verdicts.answers = None  # they were another's
        return None

    def _is_baseline_best(
        self,
        baseline: Trial,
        finalists: Sequence[Finalist],
        confirmation: Ranking | None,
    ) -> bool:
        """Whether the baseline is what to prove first."""
        if not baseline.is_completed:
            return False
        own, record = baseline.candidate, self._record
        if confirmation is not None and confirmation.winner is not None:
            is_fastest = confirmation.winner == own.key
        else:
            if finalists:
                self.note("the budget ended before the fastest could be confirmed")
            own_cost = record.cost(own)
            is_fastest = not any(record.cost(f.candidate) < own_cost for f in finalists)
        if is_fastest and finalists and not record.keeps(own):
            self.note(f"{self._own_choice} is the fastest, but misses a requirement")
            return False
        return is_fastest


def _order(by_id: Mapping[str, Finalist], confirmation: Ranking | None) -> list[str]:
    """Finalists in the order in which they are proven: the winner, then the rest."""
    first = [confirmation.winner, confirmation.leader] if confirmation else []
    wanted = [key for key in first if key in by_id]
    return list(dict.fromkeys([*wanted, *by_id]))  # type: ignore[list-item]


def _gain(confirmation: Ranking | None, key: str) -> Estimate | None:
    if confirmation is None:
        return None
    try:
        standing = confirmation.standing(key)
    except KeyError:
        return None
    return standing.against_baseline.ratio if standing.against_baseline else None
