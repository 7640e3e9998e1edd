"""A check of the answers of some settings against those of a reference.

Host layers, slices, the ubatch or another build must not change answers: they are compared for
equality. A narrower KV type may change them within limits: they get a score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Literal

from autofit.model.sizes.kv_cache import kv_element_bytes, kv_types
from autofit.quality.equality import Equality, compare_answers
from autofit.quality.prompt_set import Answers, RetrievalTask, is_found
from autofit.quality.recorded_answer import (
    RecordedAnswer,
    comparable_choices,
    token_divergences,
)
from autofit.runtime.planner.divergence_program import Divergence
from autofit.trial.candidate import Candidate

# equal, rounding and different are verdicts on answers that must not change; good and poor on
# answers that may.
AnswerVerdict = Literal["equal", "rounding", "different", "good", "poor", "unknown"]


# The worst score that is still good enough: a share of tokens, and nats a token.
_MIN_AGREEMENT = 0.85
_MAX_DIVERGENCE = 0.03


@dataclass(frozen=True, slots=True)
class ProgramScore:
    """The score that a program of the runtime, such as llama-perplexity, gave some KV types.

    Without a `divergence` there is no score. `failure` then gives users the reason; it is empty if
    the runtime has no such program.
    """

    divergence: Divergence | None = None
    program: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class QualityScore:
    """A score of how close answers are to those of a reference.

    Attributes:
        tokens: the number of compared tokens: those that both sides chose after the same text.
        agreement: the share of these tokens that are the same.
        mean_divergence, max_divergence: nats a token.
        asked: the number of planted records that the prompts asked for.
        found_by_reference: the number of these that the reference found.
        lost: the number that only the reference found.
        source: `n_probs`, the likeliest tokens of a server's answers, or the name of a program
            that compares all tokens.

    Agreement and divergences are None if the runtime reports no probabilities.
    """

    tokens: int
    agreement: float | None
    mean_divergence: float | None
    max_divergence: float | None
    asked: int = 0
    found_by_reference: int = 0
    lost: int = 0
    source: str = "n_probs"

    def with_program_score(self, found: Divergence, program: str) -> QualityScore:
        """Return the score with the figures of the runtime's own program for its tokens."""
        return replace(
            self,
            tokens=found.tokens,
            agreement=found.agreement,
            mean_divergence=found.mean,
            max_divergence=found.maximum,
            source=program,
        )

    def shortfalls(self) -> list[str]:
        """Return a sentence for each limit that the score misses."""
        found = []
        if self.agreement is None or self.mean_divergence is None:
            return ["the runtime reports no probabilities of tokens"]
        if not self.agreement >= _MIN_AGREEMENT:
            found.append(f"{self.agreement:.1%} of tokens match, under {_MIN_AGREEMENT:.0%}")
        if not self.mean_divergence <= _MAX_DIVERGENCE:
            found.append(
                f"mean divergence {self.mean_divergence:.3f} nats, over {_MAX_DIVERGENCE:g}"
            )
        if self.lost:
            found.append(f"{self.lost} of {self.found_by_reference} planted records are lost")
        return found


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """The verdict on the answers of some settings, compared with those of a reference.

    `reference` is the name of the reference for users. `equality` and `quality` are None if the
    answers could not be compared. `quality` is also None if the settings must not change answers.
    """

    verdict: AnswerVerdict
    reference: str
    equality: Equality | None
    quality: QualityScore | None
    messages: tuple[str, ...]

    @property
    def is_acceptable(self) -> bool | None:
        """True if the answers are right or good enough; None if that is unknown."""
        if self.verdict == "unknown":
            return None
        return self.verdict in ("equal", "rounding", "good")

    def to_dict(self) -> dict[str, Any]:
        """Return the check as JSON data."""
        return {
            "verdict": self.verdict,
            "holds": self.is_acceptable,
            "reference": self.reference,
            "equality": _finite(asdict(self.equality)) if self.equality else None,
            "quality": _finite(asdict(self.quality)) if self.quality else None,
            "words": list(self.messages),
        }


def narrowest_kv_bytes(candidate: Candidate) -> float:
    """Return the bytes of one number in the narrower KV type, or 0 for a type that ggml lacks."""
    return min(map(kv_element_bytes, kv_types(candidate)))


def has_narrow_kv(candidate: Candidate) -> bool:
    """Return whether keys or values are narrower than the runtime's default type."""
    return narrowest_kv_bytes(candidate) < narrowest_kv_bytes(Candidate({}))


def judge_answers(
    reference: Answers | None,
    other: Answers | None,
    *,
    reference_name: str,
    may_differ: bool,
    is_sparse: bool = False,
    by_program: ProgramScore | None = None,
) -> AnswerCheck:
    """Judge answers against those of a trusted reference to the same prompts.

    A side without answers is None. `may_differ` is true if the settings may change answers, as KV
    types do. `is_sparse` is true for a mixture of experts. `by_program` is the score of the KV
    types by the runtime's own program.
    """
    if reference is None or other is None or not _have_same_prompts(reference, other):
        message = f"answers could not be compared with {reference_name}"
        return AnswerCheck("unknown", reference_name, None, None, (message,))
    equality = compare_answers(reference.recorded, other.recorded, is_sparse=is_sparse)
    if not may_differ:
        messages = tuple(_equality_messages(equality, reference_name))
        return AnswerCheck(equality.verdict, reference_name, equality, None, messages)
    quality = score_answers(
        reference.recorded, other.recorded, reference.tasks, reference.texts, other.texts
    )
    if by_program and by_program.divergence:
        quality = quality.with_program_score(by_program.divergence, by_program.program)
    shortfalls = quality.shortfalls()
    messages = (
        _quality_message(quality, reference_name),
        *([by_program.failure] if by_program and by_program.failure else []),
        *(f"not good enough: {shortfall}" for shortfall in shortfalls),
    )
    verdict: AnswerVerdict = "poor" if shortfalls else "good"
    if quality.agreement is None:
        verdict = "unknown"
    return AnswerCheck(verdict, reference_name, equality, quality, messages)


def score_answers(
    reference: Sequence[RecordedAnswer],
    other: Sequence[RecordedAnswer],
    tasks: Sequence[RetrievalTask] = (),
    reference_texts: Sequence[str] = (),
    other_texts: Sequence[str] = (),
) -> QualityScore:
    """Score answers against a reference, both to the same prompts in the same order.

    The texts are the two sides' answers to the retrieval tasks.

    Raises:
        ValueError: the two sides have different numbers of answers or texts.
    """
    agreed = [
        ours.token_id == theirs.token_id
        for pair in zip(reference, other, strict=True)
        for ours, theirs in comparable_choices(*pair)
    ]
    divergences = token_divergences(reference, other)
    found = [
        (is_found(task, ours), is_found(task, theirs))
        for task, ours, theirs in zip(tasks, reference_texts, other_texts, strict=True)
    ]
    return QualityScore(
        tokens=len(agreed),
        agreement=fmean(agreed) if agreed else None,
        mean_divergence=fmean(divergences) if divergences else None,
        max_divergence=max(divergences, default=None),
        asked=len(found),
        found_by_reference=sum(ours for ours, _ in found),
        lost=sum(ours and not theirs for ours, theirs in found),
    )


def _have_same_prompts(one: Answers, other: Answers) -> bool:
    asked = [[(t.project, t.secret) for t in answers.tasks] for answers in (one, other)]
    return len(one.recorded) == len(other.recorded) and asked[0] == asked[1]


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    """Return a number, or None for infinity and NaN, which JSON cannot hold."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in data.items()
    }


def _equality_messages(equality: Equality, reference: str) -> Iterator[str]:
    prompts = f"{equality.identical} of {equality.prompts} prompts"
    if equality.verdict == "equal":
        tokens = f"{equality.tokens} of {equality.tokens} tokens"
        yield f"answers match {reference} ({tokens if equality.tokens else prompts})"
        return
    if equality.verdict == "rounding":
        yield f"answers match {reference} within rounding ({prompts} have exactly the same answer)"
    else:
        yield f"ANSWERS DIFFER from {reference}: only {prompts} have the same answer"
    if equality.typical_divergence is not None and equality.verdict == "different":
        yield (
            f"nine tokens in ten diverge by up to {equality.typical_divergence:.3g} nats, the "
            f"mean is {equality.mean_divergence:.3g}; rounding explains {equality.tolerance:g}"
        )
    first = equality.first
    if first is not None:
        yield (
            f"first difference in prompt {first.prompt + 1} at token {first.position + 1}: "
            f"{first.reference!r} became {first.other!r}"
        )


def _quality_message(quality: QualityScore, reference: str) -> str:
    if quality.agreement is None or quality.mean_divergence is None:
        return f"answers cannot be scored against {reference}"
    source = "" if quality.source == "n_probs" else f" ({quality.source})"
    message = (
        f"{quality.agreement:.1%} of {quality.tokens} tokens match {reference}, "
        f"mean divergence {quality.mean_divergence:.3g} nats{source}"
    )
    if quality.found_by_reference:
        kept = quality.found_by_reference - quality.lost
        return f"{message}, {kept} of {quality.found_by_reference} planted records found"
    return message
