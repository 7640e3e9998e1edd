"""Whether an entry still answers as it did."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.model.sizes.kv_cache import kv_types
from autofit.quality.answer_check import (
    AnswerCheck,
    judge_answers,
    narrowest_kv_bytes,
)
from autofit.quality.prompt_set import Answers
from autofit.sweep.entry_record import EntryRecord
from autofit.sweep.kept_night import Kept
from autofit.sweep.verdict import Finding, MetricVerdict
from autofit.trial.candidate import Candidate

_FINDINGS: dict[str, Finding] = {
    "equal": "same",
    "rounding": "same",
    "good": "same",
    "different": "output_changed",
    "poor": "output_changed",
    "unknown": "unknown",
}


def answer_verdicts(kept: Kept | None, now: EntryRecord) -> Iterator[MetricVerdict]:
    """The verdict on the answers; none where tonight's were not asked for.

    They are held against those of the reference, where it was asked tonight, else against the
    kept ones. Rounding is no change; another model file or a wider KV type is not compared.
    """
    if not now.answers:
        return
    if now.reference_answers:
        check = judge_answers(
            Answers(now.reference_answers),
            Answers(now.answers),
            reference_name="the reference",
            may_differ=False,
            is_sparse=now.is_sparse,
        )
        words = "; ".join(check.messages)
        yield MetricVerdict(
            metric="answers", verdict=_FINDINGS[check.verdict], words=words, against="reference"
        )
        return
    if kept is None or not kept.record.answers:
        yield _unknown("no answers are kept to compare with")
        return
    yield _beside_kept(kept.record, now)


def _beside_kept(kept: EntryRecord, now: EntryRecord) -> MetricVerdict:
    models = {kept.environment.model_digest, now.environment.model_digest} - {""}
    if len(models) > 1:
        return _unknown("another model file than the kept one answered")
    before, after = (Candidate(one.winner.params if one.winner else {}) for one in (kept, now))
    may_differ = kv_types(before) != kv_types(after)
    if may_differ and narrowest_kv_bytes(after) >= narrowest_kv_bytes(before):
        return _unknown("answered with another KV type than the kept one, which was no wider")
    check: AnswerCheck = judge_answers(
        Answers(kept.answers),
        Answers(now.answers),
        reference_name="the kept night",
        may_differ=may_differ,
        is_sparse=now.is_sparse,
    )
    words = "; ".join(check.messages)
    return MetricVerdict(metric="answers", verdict=_FINDINGS[check.verdict], words=words)


def _unknown(words: str) -> MetricVerdict:
    return MetricVerdict(metric="answers", verdict="unknown", words=words)
