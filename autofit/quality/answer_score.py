"""What a narrower KV type costs: a score of its answers against those of f16.

Unlike other settings a KV type may change the answers. Three things are told: how often the
next token is the same after the same text, how far its chances move, and whether records
planted far apart in a long text are still found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from autofit.quality.divergence import divergences
from autofit.quality.recorded_answer import RecordedAnswer, same_prefix
from autofit.quality.retrieval import RetrievalTask, is_found
from autofit.runtime.planner.divergence_program import Divergence


@dataclass(frozen=True, slots=True)
class QualityLimits:
    """The worst score that is still good enough."""

    agreement: float = 0.85
    mean_divergence: float = 0.03


@dataclass(frozen=True, slots=True)
class QualityScore:
    """How close the answers are to the reference.

    `agreement` is the share of the `tokens` after the same text that were the same;
    divergences are in nats. Of `asked` records the reference found `found_by_reference`,
    and the other lost `lost` of these. None where the runtime does not tell. `source` is what
    told of the tokens: the likeliest ones of a server's answers (n_probs), or a program that
    sees all of them.
    """

    tokens: int
    agreement: float | None
    mean_divergence: float | None
    max_divergence: float | None
    asked: int = 0
    found_by_reference: int = 0
    lost: int = 0
    source: str = "n_probs"

    def to_dict(self) -> dict[str, Any]:
        """The score as JSON data."""
        return asdict(self)

    def shortfalls(self, limits: QualityLimits | None = None) -> list[str]:
        """In what the score is not good enough, in words; nothing where it holds."""
        limits = limits or QualityLimits()
        found = []
        if self.agreement is None or self.mean_divergence is None:
            return ["the runtime does not tell the chances of its tokens"]
        if not self.agreement >= limits.agreement:
            found.append(f"{self.agreement:.1%} of the tokens agree, under {limits.agreement:.0%}")
        if not self.mean_divergence <= limits.mean_divergence:
            found.append(
                f"the chances of a token diverge by {self.mean_divergence:.3f} nats, "
                f"over {limits.mean_divergence:g}"
            )
        if self.lost:
            found.append(f"{self.lost} of {self.found_by_reference} planted records are lost")
        return found


def with_divergence(quality: QualityScore, found: Divergence, source: str) -> QualityScore:
    """The score with what the runtime's own program told of the tokens."""
    return replace(
        quality,
        tokens=found.tokens,
        agreement=found.agreement,
        mean_divergence=found.mean,
        max_divergence=found.most,
        source=source,
    )


def score(
    reference: Sequence[RecordedAnswer],
    other: Sequence[RecordedAnswer],
    tasks: Sequence[RetrievalTask] = (),
    reference_texts: Sequence[str] = (),
    other_texts: Sequence[str] = (),
) -> QualityScore:
    """The score of answers against the reference, to the same prompts in the same order.

    The texts are the two sides' answers to the retrieval tasks, one each.

    Raises:
        ValueError: the answers do not pair up.
    """
    agreed = [
        ours.token_id == theirs.token_id
        for pair in zip(reference, other, strict=True)
        for ours, theirs in same_prefix(*pair)
    ]
    diverged = divergences(reference, other)
    found = [
        (is_found(task, ours), is_found(task, theirs))
        for task, ours, theirs in zip(tasks, reference_texts, other_texts, strict=True)
    ]
    return QualityScore(
        tokens=len(agreed),
        agreement=fmean(agreed) if agreed else None,
        mean_divergence=fmean(diverged) if diverged else None,
        max_divergence=max(diverged, default=None),
        asked=len(found),
        found_by_reference=sum(ours for ours, _ in found),
        lost=sum(ours and not theirs for ours, theirs in found),
    )
