"""The decision whether the answers of a KV type, or of the winner, are good enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from autofit.model.sizes.kv_cache import (
    KvTypes,
    format_kv_types,
    kv_element_bytes,
    kv_types,
)
from autofit.quality.answer_check import AnswerCheck, has_narrow_kv
from autofit.quality.output_evaluator import OutputEvaluator
from autofit.session.finalist import Finalist, Proof
from autofit.trial.candidate import Candidate


def has_poor_kv(candidate: Candidate, poor: Iterable[KvTypes]) -> bool:
    """Return whether a candidate's KV types are poor, or narrower than a poor pair."""
    return any(_is_within(kv_types(candidate), types) for types in poor)


@dataclass(slots=True)
class QualityGate:
    """A gate that lets only candidates with good enough answers pass.

    `evaluator` is None if the answers of the model mean nothing: all candidates pass then. `note`
    is called with each message for the user. `scored` are the checks of narrow KV types.
    """

    evaluator: OutputEvaluator | None
    note: Callable[[str], None]
    scored: dict[KvTypes, AnswerCheck] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=set)

    @property
    def poor(self) -> list[KvTypes]:
        """The KV types that are not good enough."""
        return [types for types, check in self.scored.items() if check.is_acceptable is False]

    def is_poor(self, candidate: Candidate) -> bool:
        """Return whether a candidate's KV types are poor, or narrower than a poor pair."""
        return has_poor_kv(candidate, self.poor)

    def is_open(self, candidate: Candidate) -> bool:
        """Return whether a candidate has narrow KV types that could still be scored."""
        if self.evaluator is None or not has_narrow_kv(candidate) or self.is_poor(candidate):
            return False
        return kv_types(candidate) not in self.scored

    def score(self, finalist: Finalist) -> None:
        """Score the KV types of a finalist, for all candidates that have them.

        Raises:
            Interrupted: the user stopped the run.
        """
        if self.evaluator is not None:
            self._record(finalist.candidate, self.evaluator.check(finalist, "finalist"))

    def check_winner(self, proof: Proof) -> AnswerCheck | None:
        """Check a winner's answers; return None if no time is left or if answers mean nothing.

        Raises:
            Interrupted: the user stopped the run.
        """
        if self.evaluator is None:
            return None
        finalist = proof.finalist
        # A winner or reference with all prompts takes about as long as the proof.
        needed_s = self.evaluator.servers_needed(finalist.candidate) * proof.trial.seconds
        left_s = self.evaluator.runner.budget.left_for_s("prove")
        if left_s is not None and left_s < needed_s:
            self.note("answers not compared: budget used up")
            return None
        check = self.evaluator.check(finalist)
        self._record(finalist.candidate, check)
        return check

    def _record(self, candidate: Candidate, check: AnswerCheck) -> None:
        for message in check.messages:
            if message not in self._noted:
                self._noted.add(message)
                self.note(message)
        types = kv_types(candidate)
        if not has_narrow_kv(candidate) or self.scored.get(types) == check:
            return
        self.scored[types] = check
        if check.is_acceptable is False:
            self.note(f"no candidate with KV {format_kv_types(types)} is recommended")


def _is_within(types: KvTypes, others: KvTypes) -> bool:
    """Return whether keys and values each have fewer bits than others, or the same type."""
    return all(
        one == other or 0 < kv_element_bytes(one) < kv_element_bytes(other)
        for one, other in zip(types, others, strict=True)
    )
