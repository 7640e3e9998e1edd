"""Whether other settings left the answers right: the same, or good enough where they may change.

Host layers, slices, ubatch or another build must not change what is answered; a narrower KV
type may, within limits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from autofit.model.sizes.kv_cache import kv_element_bytes, kv_types
from autofit.quality.answer_score import QualityLimits, QualityScore, score, with_divergence
from autofit.quality.equality import Equality, compare_answers
from autofit.quality.interview import Answers
from autofit.quality.kv_score import KvScore
from autofit.trial.candidate import Candidate

# equal, rounding, different: of answers that must not change. good, poor: of those that may.
AnswerVerdict = Literal["equal", "rounding", "different", "good", "poor", "unknown"]


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """The answers of some settings against those of a reference.

    `reference` says what that is. `quality` is None where answers must not change; `words`
    are sentences for the user.
    """

    verdict: AnswerVerdict
    reference: str
    equality: Equality | None
    quality: QualityScore | None
    words: tuple[str, ...]

    @property
    def holds(self) -> bool | None:
        """Whether the answers are right; None where it could not be told."""
        if self.verdict == "unknown":
            return None
        return self.verdict in ("equal", "rounding", "good")

    def to_dict(self) -> dict[str, Any]:
        """The check as JSON data."""
        return {
            "verdict": self.verdict,
            "holds": self.holds,
            "reference": self.reference,
            "equality": _finite(self.equality.to_dict()) if self.equality else None,
            "quality": _finite(self.quality.to_dict()) if self.quality else None,
            "words": list(self.words),
        }


def narrowest_kv_bytes(candidate: Candidate) -> float:
    """Return the bytes of one number in the narrower KV type; 0 for a type that ggml lacks."""
    return min(map(kv_element_bytes, kv_types(candidate)))


def has_narrow_kv(candidate: Candidate) -> bool:
    """Whether a cache is narrower than the runtime's own, so that answers may change."""
    return narrowest_kv_bytes(candidate) < narrowest_kv_bytes(Candidate({}))


def judge_answers(
    reference: Answers | None,
    other: Answers | None,
    *,
    reference_words: str,
    may_differ: bool,
    is_sparse: bool = False,
    limits: QualityLimits | None = None,
    by_program: KvScore | None = None,
) -> AnswerCheck:
    """Judge answers against those of a reference to the same questions.

    Args:
        reference: those that are trusted; None where there are none.
        other: those to be checked.
        reference_words: what the reference is.
        may_differ: whether what differs between the two may change answers, as KV types do.
        is_sparse: whether the model is a mixture of experts.
        limits: how far they may, then.
        by_program: what the runtime's own program told of KV types that may.
    """
    if reference is None or other is None or not _pair_up(reference, other):
        unknown = f"answers could not be compared with {reference_words}"
        return AnswerCheck("unknown", reference_words, None, None, (unknown,))
    equality = compare_answers(reference.recorded, other.recorded, is_sparse=is_sparse)
    if not may_differ:
        told = tuple(_equality_words(equality, reference_words))
        return AnswerCheck(equality.verdict, reference_words, equality, None, told)
    quality = score(
        reference.recorded, other.recorded, reference.tasks, reference.texts, other.texts
    )
    if by_program and by_program.divergence:
        quality = with_divergence(quality, by_program.divergence, by_program.program)
    short = quality.shortfalls(limits)
    told = (_quality_words(quality, reference_words), by_program.words if by_program else "")
    words = (*filter(None, told), *(f"not good enough: {s}" for s in short))
    verdict: AnswerVerdict = "poor" if short else "good"
    if quality.agreement is None:
        verdict = "unknown"
    return AnswerCheck(verdict, reference_words, equality, quality, words)


def _pair_up(one: Answers, other: Answers) -> bool:
    asked = [[(t.project, t.secret) for t in answers.tasks] for answers in (one, other)]
    return len(one.recorded) == len(other.recorded) and asked[0] == asked[1]


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    """The data without numbers that JSON does not know: nonsense diverges infinitely."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in data.items()
    }


def _equality_words(equality: Equality, reference: str) -> Iterator[str]:
    count = f"{equality.identical} of {equality.prompts} prompts"
    if equality.verdict == "equal":
        yield f"the same answers as {reference} to {equality.prompts} prompts"
        return
    if equality.verdict == "rounding":
        yield f"the same answers as {reference} but for rounding: word for word to {count}"
    else:
        yield f"OTHER ANSWERS than {reference}: word for word only to {count}"
    if equality.typical_divergence is not None and equality.verdict == "different":
        yield (
            f"the chances of its tokens diverge by {equality.mean_divergence:.3g} nats on "
            f"average and by up to {equality.typical_divergence:.3g} in nine of ten; rounding "
            f"explains {equality.tolerance:g}"
        )
    first = equality.first
    if first is not None:
        yield (
            f"first difference in prompt {first.prompt + 1} at token {first.position + 1}: "
            f"{first.reference!r} became {first.other!r}"
        )


def _quality_words(quality: QualityScore, reference: str) -> str:
    if quality.agreement is None or quality.mean_divergence is None:
        return f"answers cannot be scored against {reference}"
    told = (
        f"against {reference} {quality.agreement:.1%} of {quality.tokens} tokens are the same, "
        f"their chances diverge by {quality.mean_divergence:.3g} nats ({quality.source})"
    )
    if quality.found_by_reference:
        kept = quality.found_by_reference - quality.lost
        return f"{told}, {kept} of {quality.found_by_reference} planted records are found"
    if quality.asked:
        return f"{told}; the reference found none of {quality.asked} planted records"
    return told
