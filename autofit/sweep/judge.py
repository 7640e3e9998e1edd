"""The verdict on an entry: outcome, speeds, memory, fit boundaries and answers."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from autofit.model.sizes.kv_cache import kv_types
from autofit.quality.answer_check import AnswerCheck, judge_answers, narrowest_kv_bytes
from autofit.quality.prompt_set import Answers
from autofit.statistics.night_change import NightValue
from autofit.sweep.baseline_entry import BaselineEntry
from autofit.sweep.entry_record import (
    NEVER_LAUNCHED,
    BoundaryRow,
    EntryFailure,
    EntryRecord,
    EnvironmentSnapshot,
)
from autofit.sweep.speed_verdict import (
    changed_reference_speeds,
    speed_verdicts,
    unsteady_speeds,
)
from autofit.sweep.verdict import (
    Against,
    EntryVerdict,
    Finding,
    MetricVerdict,
    Thresholds,
    Verdict,
    overall_verdict,
)
from autofit.trial.candidate import Candidate
from autofit.trial.device import HOST_NAME

# Allocators and mapped files move the runtime's memory in RAM by more than that of devices:
# the resident pages of a model depend on the room that the host has.
_HOST_MEMORY_MIB = 512.0
_HOST_SHARE = 0.05
_ANSWER_FINDINGS: dict[str, Finding] = {
    "equal": "same",
    "rounding": "same",
    "good": "same",
    "different": "output_changed",
    "poor": "output_changed",
    "unknown": "unknown",
}


def judge_entry(
    before: BaselineEntry | None, now: EntryRecord, thresholds: Thresholds | None = None
) -> EntryVerdict:
    """Judge tonight's record of an entry against its baseline, which may be None.

    If the baseline has a failure, too, a failure is `failing`; otherwise it is new. Without a
    baseline the figures are compared with the reference, if that was measured.
    """
    thresholds = thresholds or Thresholds()
    environment = before.record.environment if before else EnvironmentSnapshot()
    metrics: tuple[MetricVerdict, ...] = ()
    notes: list[str] = []
    if before is not None and _has_other_task(before, now):
        notes.append("the entry's task changed, so its baseline starts again")
        before = None
    if now.status in NEVER_LAUNCHED:
        verdict: Verdict = "skipped"
        notes += _skip_notes(before, now)
    else:
        metrics = (_judge_outcome(before, now),)
        if now.status == "ok":
            metrics += (
                *speed_verdicts(before, now, thresholds),
                *_judge_memory(before, now, thresholds),
                *_judge_boundaries(before, now),
                *_judge_answers(before, now),
            )
            notes += _change_notes(before, now, thresholds)
        else:
            # The fit boundary best explains why settings no longer fit.
            metrics += tuple(_judge_boundaries(before, now))
        verdict = overall_verdict(metrics)
        if before is None and not now.reference and verdict in ("same", "undecided"):
            verdict = "new"
    return EntryVerdict(
        name=now.name,
        verdict=verdict,
        metrics=metrics,
        environment_changes=tuple(environment.changes(now.environment)),
        builds=(environment.build, now.environment.build),
        notes=(*notes, *now.notes),
        reproduce=now.reproduce,
        date=now.date,
        seconds=now.seconds,
    )


def _has_other_task(before: BaselineEntry, now: EntryRecord) -> bool:
    """Return whether requests, context or arguments changed. Unknown ones count as unchanged."""
    old, new = before.record.environment.task, now.environment.task
    return bool(old and new and old != new)


def _skip_notes(before: BaselineEntry | None, now: EntryRecord) -> Iterator[str]:
    reason = "not on this machine" if now.status == "missing_hardware" else "not run"
    evidence = now.failure.evidence if now.failure else ""
    yield f"{reason}: {evidence}" if evidence else reason
    if before and before.nights:
        yield f"last measured {before.nights[-1].date}"


def _change_notes(
    before: BaselineEntry | None, now: EntryRecord, thresholds: Thresholds
) -> Iterator[str]:
    if before is None:
        return
    if _has_other_settings(before, now):
        yield "memory is not compared, because the baseline has other settings"
    for metric, value in unsteady_speeds(before, now, thresholds):
        usual_sd = _mean_sd(before.values_by_level(metric))
        yield (
            f"launches vary more than in earlier nights: {metric} by {value.sd or 0:.1%} a "
            f"launch, before by {usual_sd:.1%}"
        )
    for one in changed_reference_speeds(before, now, thresholds):
        yield (
            f"the reference itself is {one.verdict} in {one.metric} than in earlier nights: the "
            "machine changed, not only the runtime"
        )


def _has_other_settings(before: BaselineEntry, now: EntryRecord) -> bool:
    old, new = before.record.winner, now.winner
    return bool(old and new and old.digest != new.digest)


def _mean_sd(levels: list[list[NightValue]]) -> float:
    values = [night.sd for level in levels for night in level if night.sd is not None]
    return sum(values) / len(values) if values else 0.0


def _judge_outcome(before: BaselineEntry | None, now: EntryRecord) -> MetricVerdict:
    old = before.record if before and before.record.status != "ok" else None
    verdict: Finding
    if now.status == "ok":
        verdict, message = "same", "it ran"
        if old is not None:
            verdict, message = (
                "recovered",
                f"it runs again; in the baseline: {_describe_failure(old)}",
            )
        return MetricVerdict(metric="outcome", verdict=verdict, message=message)
    message = _describe_failure(now)
    if old is not None:
        verdict, was = "failing", _describe_failure(old)
        same = f"fails as in the baseline: {message}"
        message = same if message == was else f"{message}; baseline: {was}"
    elif now.status == "rejected":
        verdict = "preset_rejected"
        message = f"the runtime no longer accepts the settings: {message}"
    else:
        verdict = "new_failure"
    return MetricVerdict(metric="outcome", verdict=verdict, message=message)


def _describe_failure(record: EntryRecord) -> str:
    failure = record.failure or EntryFailure(record.status, "")
    kind = failure.kind.replace("_", " ")
    reason = f" ({failure.reason.replace('_', ' ')})" if failure.reason else ""
    stage = f" at the stage {failure.stage}" if failure.stage else ""
    return f"{kind}{reason}{stage}" + (f": {failure.evidence}" if failure.evidence else "")


def _judge_memory(
    before: BaselineEntry | None, now: EntryRecord, thresholds: Thresholds
) -> Iterator[MetricVerdict]:
    """Yield a verdict on the peak memory of each device, against the nights of the current level.

    Other settings need other amounts of memory, so they are not compared. A peak is a change if
    it differs from every night's peak by more than the threshold in the same direction.
    """
    is_comparable = before is not None and not _has_other_settings(before, now)
    for device, mib in now.peak_mib.items():
        nights = before.peaks_mib(device) if before and is_comparable else []
        if mib is None and not nights:
            continue
        usual = median(nights) if nights else None
        threshold = thresholds.memory_mib
        if device == HOST_NAME:
            threshold = max(_HOST_MEMORY_MIB, _HOST_SHARE * (usual or 0.0))
        verdict: Finding = "same"
        if mib is None or not nights:
            verdict = "unknown"
        elif mib > max(nights) + threshold:
            verdict = "more_memory"
        elif mib < min(nights) - threshold:
            verdict = "less_memory"
        yield MetricVerdict(
            metric=f"peak_mib {device}",
            verdict=verdict,
            message=_memory_message(verdict, usual, mib),
            kept=usual,
            now=mib,
            ratio=mib / usual if mib and usual else None,
            threshold=threshold,
            nights=(*nights, mib) if mib is not None else (),
        )


def _memory_message(verdict: Finding, usual: float | None, mib: float | None) -> str:
    if mib is None:
        return "not counted tonight"
    if usual is None:
        return f"{mib:,.0f} MiB; no baseline yet"
    both = f"{mib:,.0f} MiB, baseline {usual:,.0f} MiB"
    if verdict in ("more_memory", "less_memory"):
        return f"{abs(mib - usual):,.0f} MiB {verdict.partition('_')[0]}: {both}"
    return both


def _judge_boundaries(before: BaselineEntry | None, now: EntryRecord) -> Iterator[MetricVerdict]:
    """Yield a verdict on the fewest host layers that fit, for each layout and KV type.

    Only a launch shows a change: the baseline's value fails tonight, or a value that failed
    before now fits. Boundaries with another ubatch or other expert memory are not compared.
    """
    rows = before.record.boundary if before else ()
    before_rows = {(row.layout, row.cache_type): row for row in rows}
    for row in now.boundary:
        old = before_rows.get((row.layout, row.cache_type))
        verdict = _boundary_finding(old, row)
        yield MetricVerdict(
            metric=f"boundary {row.layout} {row.cache_type}",
            verdict=verdict,
            message=_boundary_message(verdict, old, row),
            kept=old.fits if old else None,
            now=row.fits,
            threshold=1,
        )


def _boundary_finding(old: BoundaryRow | None, now: BoundaryRow) -> Finding:
    if old is None or _differ_in_settings(old, now) or (old.fits is None and now.fits is None):
        return "unknown"
    if old.fits is None:
        return "boundary_gained"
    if now.fits is None or now.fits > old.fits:
        return "boundary_moved" if _was_shown_to_fail(now, old.fits) else "undecided"
    if now.fits < old.fits:
        return "boundary_gained" if _was_shown_to_fail(old, now.fits) else "undecided"
    return "same"


def _differ_in_settings(old: BoundaryRow, now: BoundaryRow) -> bool:
    return any(
        before is not None and after is not None and before != after
        for before, after in ((old.ubatch, now.ubatch), (old.experts, now.experts))
    )


def _was_shown_to_fail(row: BoundaryRow, host_layers: int) -> bool:
    """Return whether a launch with at least this many host layers failed."""
    was_launched = row.proven or row.outcome is not None
    return was_launched and row.fails is not None and row.fails >= host_layers


def _boundary_message(verdict: Finding, old: BoundaryRow | None, now: BoundaryRow) -> str:
    if old is None:
        return f"{_describe_boundary(now)}; no baseline yet"
    both = f"{_describe_boundary(now)}; baseline: {_describe_boundary(old)}"
    if _differ_in_settings(old, now):
        return f"{both}; not compared: {_describe_settings(now)}, before {_describe_settings(old)}"
    if verdict == "boundary_moved" and now.fits is not None and old.fits is not None:
        layers = now.fits - old.fits
        return f"{layers} layer{'s' * (layers > 1)} fewer fit on the devices: {both}"
    if verdict == "boundary_moved":
        return f"nothing fits now: {both}"
    return f"{both}; not shown by a launch" if verdict == "undecided" else both


def _describe_boundary(row: BoundaryRow) -> str:
    if row.fits is None:
        return "nothing fits"
    text = f"{row.fits} layers with experts in RAM fit"
    if row.fails is None:
        return text
    return f"{text}, {row.fails} {'fail' if row.proven or row.outcome else 'may fail'}"


def _describe_settings(row: BoundaryRow) -> str:
    settings = {"ubatch": row.ubatch, **(row.experts or {})}
    return " ".join(f"{name} {value}" for name, value in settings.items() if value is not None)


def _judge_answers(before: BaselineEntry | None, now: EntryRecord) -> Iterator[MetricVerdict]:
    """Yield the verdict on tonight's answers, if there are any.

    They are compared with tonight's answers of the reference, or else with the baseline's.
    Rounding is no change. Answers of another model file or a wider KV type are not compared.
    """
    if now.answers:
        found = _check_answers(before.record if before else None, now)
        verdict: Finding = "unknown"
        if isinstance(found, AnswerCheck):
            verdict, found = _ANSWER_FINDINGS[found.verdict], "; ".join(found.messages)
        against: Against = "reference" if now.reference_answers else "baseline"
        yield MetricVerdict(metric="answers", verdict=verdict, message=found, against=against)


def _check_answers(before: EntryRecord | None, now: EntryRecord) -> AnswerCheck | str:
    """Check the answers of tonight, or return why there is nothing to compare them with."""
    reference, name, may_differ = now.reference_answers, "the reference", False
    if not reference:
        if before is None or not before.answers:
            return "no baseline yet"
        if len({before.environment.model_digest, now.environment.model_digest} - {""}) > 1:
            return "not compared: the model file changed"
        old, new = (Candidate(one.winner.params if one.winner else {}) for one in (before, now))
        may_differ = kv_types(old) != kv_types(new)
        if may_differ and narrowest_kv_bytes(new) >= narrowest_kv_bytes(old):
            return "not compared: the baseline has another KV type that is not wider"
        reference, name = before.answers, "the baseline"
    return judge_answers(
        Answers(reference),
        Answers(now.answers),
        reference_name=name,
        may_differ=may_differ,
        is_sparse=now.is_sparse,
    )
