"""Whether a winner answers well enough to be recommended, and which KV types do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autofit.runtime.launch import RUNTIME_FIT
from autofit.trial.candidate import Candidate
from autofit.trial.trial import Trial
from autofit.tuning.answer_check import AnswerCheck, check_answers
from autofit.tuning.kv_score import WIDE_KV, kv_types, kv_words
from autofit.tuning.prove import Finalist, Proof
from autofit.tuning.runner import TrialRunner
from autofit.tuning.situation import Situation


@dataclass(slots=True)
class AnswerVerdicts:
    """Asks winners for their answers; `answers` are those of the last one asked.

    Without `is_asking` the answers of a model mean nothing and all are taken for right.
    """

    situation: Situation
    runner: TrialRunner
    note: Callable[[str], None]
    is_asking: bool = True
    answers: AnswerCheck | None = None
    _poor_kv: set[tuple[str, str]] = field(default_factory=set)

    def is_poor(self, candidate: Candidate) -> bool:
        """Whether a candidate has a KV type that was found not good enough."""
        return kv_types(candidate) in self._poor_kv

    def are_right(self, proof: Proof, baseline: Trial) -> bool:
        """Whether a winner's answers are right; what cannot be told is no objection."""
        if not self.is_asking:
            return True
        left_s = self.runner.budget.left_for_s("prove")
        # Winner and reference are each asked about as much as the proof was.
        if left_s is not None and left_s < 2 * proof.trial.seconds:
            self.note("no time was left to compare the winner's answers with the baseline's")
            return True
        reference = Finalist(baseline.candidate, RUNTIME_FIT)
        self.answers = check_answers(self.runner, self.situation, proof.finalist, reference)
        for words in self.answers.words:
            self.note(words)
        if self.answers.holds is False and self.answers.quality is not None:
            # Which layers lie where does not change what a KV type does to answers.
            self._poor_kv.add(kv_types(proof.finalist.candidate))
            self.note(
                f"no candidate with KV {kv_words(proof.finalist.candidate)} is recommended; "
                f"--kv-floor {WIDE_KV} searches without narrower types"
            )
        return self.answers.holds is not False
