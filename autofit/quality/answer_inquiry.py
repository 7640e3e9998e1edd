"""Asks candidates and a reference for their answers, each of them once.

A check of narrow KV types takes four launches: reference and candidate are asked, and the
runtime's own program, where there is one, takes two. What they have told serves every other
candidate of the run: the reference is the same, and a KV type does the same to answers
wherever layers lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from autofit.model.sizes.kv_cache import DEFAULT_KV_TYPE, KvTypes, kv_types
from autofit.quality.answer_check import AnswerCheck, has_narrow_kv, judge_answers
from autofit.quality.interview import Answers, PromptSet, interviewed
from autofit.quality.kv_score import KvScore, kv_score
from autofit.runtime.server.request_plan import plan_without_measurement
from autofit.session.finalist import Finalist
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.parameter_groups import KV_TYPE_PARAMS
from autofit.trial.purpose import Subject, TrialPurpose

_REFERENCE = TrialPurpose("prove", "reference_answers", subject="baseline")


@dataclass(slots=True)
class OutputEvaluator:
    """Checks the answers of candidates of a run against those of its baseline.

    The reference is the baseline, with a KV cache of f16 whatever its own is. Where a
    candidate's KV is as wide, the answers must be the same; where it is narrower, they are
    scored, records planted over the whole context included. A reference that does not hold
    is tried with the candidate's placement, then with its KV cache in host memory.
    """

    runner: TrialRunner
    task: Task
    baseline: Finalist
    _checks: dict[str, AnswerCheck] = field(default_factory=dict)
    _told: dict[tuple[str, str, bool], tuple[Answers | None, float]] = field(default_factory=dict)
    _scores: dict[KvTypes, KvScore] = field(default_factory=dict)

    def launches_left(self, candidate: Candidate) -> int:
        """How many servers a check of a candidate would ask; the program's runs not counted."""
        if candidate.key in self._checks:
            return 0
        known = self._known(self.reference, has_retrieval=has_narrow_kv(candidate))
        return 1 if known and known[0] else 2

    @property
    def reference(self) -> Finalist:
        """What is trusted where it holds."""
        return _wide(self.baseline)

    def was_asked(self, candidate: Candidate) -> bool:
        """Whether the study holds a candidate's answers, of this run or one before it."""
        if any(key == candidate.key for key, _, _ in self._told):
            return True
        return self.runner.is_known(TrialPurpose("prove", "answers"), candidate)

    def check(self, finalist: Finalist, subject: Subject = "winner") -> AnswerCheck:
        """Launch what was not asked yet, in the phase prove, and judge the answers.

        Raises:
            Interrupted: the user stopped the run.
        """
        key = finalist.candidate.key
        if key not in self._checks:
            self._checks[key] = self._check(finalist, subject)
        return self._checks[key]

    def _check(self, finalist: Finalist, subject: Subject) -> AnswerCheck:
        may_differ = has_narrow_kv(finalist.candidate)
        reference, reference_words = None, "no reference"
        for one, words, purpose in self._references(finalist, subject):
            reference_words = words
            reference, _ = self._ask(one, purpose, has_retrieval=may_differ)
            if reference is not None:
                break
        other, by_program = None, None
        if reference is not None:
            purpose = TrialPurpose("prove", "answers", subject=subject)
            other, seconds = self._ask(finalist, purpose, has_retrieval=may_differ)
            if may_differ and other is not None:
                by_program = self._score(finalist, expected_s=seconds)
        return judge_answers(
            *(reference, other),
            reference_words=reference_words,
            may_differ=may_differ,
            is_sparse=self.task.inventory.is_moe,
            by_program=by_program,
        )

    def _ask(
        self, finalist: Finalist, purpose: TrialPurpose, *, has_retrieval: bool
    ) -> tuple[Answers | None, float]:
        """A candidate's answers, and the seconds that a launch for them takes."""
        known = self._known(finalist, has_retrieval=has_retrieval)
        if known is not None:
            return known
        workload = self.task.workload
        interview = PromptSet(workload, workload.slot_context, has_retrieval=has_retrieval)
        trial, answers = interviewed(
            *(self.runner, interview, purpose, finalist.candidate, plan_without_measurement()),
            layout=finalist.layout,
            is_verbatim=finalist.is_verbatim,
        )
        told = answers, trial.seconds
        self._told[finalist.candidate.key, finalist.layout, has_retrieval] = told
        return told

    def _known(
        self, finalist: Finalist, *, has_retrieval: bool
    ) -> tuple[Answers | None, float] | None:
        """What a candidate has told, None where it was not asked as much."""
        key = finalist.candidate.key, finalist.layout
        exact = self._told.get((*key, has_retrieval))
        more = self._told.get((*key, True))
        if exact is not None or more is None:
            return exact
        answers, seconds = more
        return (replace(answers, tasks=(), texts=()) if answers else None), seconds

    def _score(self, finalist: Finalist, *, expected_s: float) -> KvScore:
        types = kv_types(finalist.candidate)
        if types not in self._scores:
            wide = _wide(finalist).candidate
            self._scores[types] = kv_score(
                self.runner, self.task, finalist, wide, expected_s=expected_s
            )
        return self._scores[types]

    def _references(
        self, finalist: Finalist, subject: Subject
    ) -> Iterator[tuple[Finalist, str, TrialPurpose]]:
        """Candidates with an f16 KV cache and what to call them, the cheapest to trust first."""
        own = self.reference
        words = "the baseline" + (f" with {DEFAULT_KV_TYPE} KV" * (own != self.baseline))
        yield own, words, _REFERENCE
        placed = _wide(finalist)
        if placed.candidate != finalist.candidate:
            purpose = replace(_REFERENCE, subject=subject)
            article = "a" if subject == "finalist" else "the"
            words = f"{article} {subject} with {DEFAULT_KV_TYPE} KV"
            yield placed, words, purpose
            if self.task.runtime.supports("kv_offload", value=False):
                on_host = placed.candidate.with_params(kv_offload=False)
                yield replace(placed, candidate=on_host), f"{words} on the host", purpose


def _wide(finalist: Finalist) -> Finalist:
    """The same with a wide KV cache."""
    kept = {
        name: DEFAULT_KV_TYPE
        for name, kind in zip(KV_TYPE_PARAMS, kv_types(finalist.candidate), strict=True)
        if kind != DEFAULT_KV_TYPE
    }
    return replace(finalist, candidate=finalist.candidate.with_params(**kept))
