"""Which KV types and which winners answer well enough to be recommended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autofit.model.sizes.kv_cache import KvTypes, kv_element_bytes, kv_types
from autofit.quality.answer_check import AnswerCheck, has_narrow_kv
from autofit.quality.answer_inquiry import OutputEvaluator
from autofit.quality.kv_score import type_words
from autofit.session.finalist import Finalist, Proof
from autofit.trial.candidate import Candidate


@dataclass(slots=True)
class QualityGate:
    """Judges the answers of a run's candidates; `answers` are those of the last winner asked.

    `scored` are KV types with what they cost. Without an `inquiry` the answers of a model mean
    nothing and all are taken for right. `note` is told what the user should know.
    """

    inquiry: OutputEvaluator | None
    note: Callable[[str], None]
    answers: AnswerCheck | None = None
    scored: dict[KvTypes, AnswerCheck] = field(default_factory=dict)
    _words: set[str] = field(default_factory=set)

    @property
    def poor(self) -> list[KvTypes]:
        """The KV types that were found not good enough."""
        return [types for types, check in self.scored.items() if check.holds is False]

    def is_poor(self, candidate: Candidate) -> bool:
        """Whether a candidate has KV types that are not good enough.

        That are those found so, and any that keep fewer bits of keys and of values.
        """
        return any(_is_within(kv_types(candidate), poor) for poor in self.poor)

    def is_open(self, candidate: Candidate) -> bool:
        """Whether a candidate has narrow KV types that are not scored yet, and could be."""
        if self.inquiry is None or not has_narrow_kv(candidate) or self.is_poor(candidate):
            return False
        return kv_types(candidate) not in self.scored

    def score(self, finalist: Finalist) -> None:
        """Score the KV types of a finalist, for all that have them.

        Which layers lie where does not change what a KV type does to answers.

        Raises:
            Interrupted: the user stopped the run.
        """
        if self.inquiry is not None:
            self._keep(finalist.candidate, self.inquiry.check(finalist, "finalist"))

    def are_right(self, proof: Proof) -> bool:
        """Whether a winner's answers are right; what cannot be told is no objection.

        Raises:
            Interrupted: the user stopped the run.
        """
        if self.inquiry is None:
            return True
        finalist = proof.finalist
        # Winner and reference are each asked about as much as the proof was.
        needed_s = self.inquiry.launches_left(finalist.candidate) * proof.trial.seconds
        left_s = self.inquiry.runner.budget.left_for_s("prove")
        if left_s is not None and left_s < needed_s:
            self.note("no time was left to compare the winner's answers with the baseline's")
            return True
        self.answers = self.inquiry.check(finalist)
        self._keep(finalist.candidate, self.answers)
        return self.answers.holds is not False

    def _keep(self, candidate: Candidate, check: AnswerCheck) -> None:
        for words in check.words:
            if words not in self._words:
                self._words.add(words)
                self.note(words)
        types = kv_types(candidate)
        if not has_narrow_kv(candidate) or self.scored.get(types) == check:
            return
        self.scored[types] = check
        if check.holds is False:
            self.note(f"no candidate with KV {type_words(types)} is recommended")


def _is_within(types: KvTypes, others: KvTypes) -> bool:
    """Whether keys and values each keep fewer bits than others, or are of the same type."""
    return all(
        one == other or 0 < kv_element_bytes(one) < kv_element_bytes(other)
        for one, other in zip(types, others, strict=True)
    )
