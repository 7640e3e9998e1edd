"""The verdict on an entry: did it run, how fast, with how much memory, and what did it answer."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.statistics.night_change import NightValue
from autofit.sweep.answer_verdict import answer_verdicts
from autofit.sweep.entry_record import EntryRecord, Failure
from autofit.sweep.environment_snapshot import EnvironmentSnapshot
from autofit.sweep.kept_night import Kept
from autofit.sweep.memory_verdict import boundary_verdicts, memory_verdicts
from autofit.sweep.speed_verdict import reference_moved, speed_verdicts, unsteady
from autofit.sweep.thresholds import Thresholds
from autofit.sweep.verdict import EntryVerdict, MetricVerdict, Verdict, overall

_NEVER_LAUNCHED = ("missing_hardware", "not_run")


def judge(
    kept: Kept | None, now: EntryRecord, thresholds: Thresholds | None = None
) -> EntryVerdict:
    """Tonight's record of an entry against what is kept of it, None where nothing is.

    A failure of an entry of which nothing is kept is a new failure; one that was kept as such
    is `failing`. Figures of an entry of which nothing is kept are compared with its reference,
    where it was measured.
    """
    thresholds = thresholds or Thresholds()
    environment = kept.record.environment if kept else EnvironmentSnapshot()
    metrics: tuple[MetricVerdict, ...] = ()
    notes: list[str] = []
    if kept is not None and _asks_otherwise(kept, now):
        notes.append("the entry asks for something else than when it was kept: it begins anew")
        kept = None
    if now.status in _NEVER_LAUNCHED:
        verdict: Verdict = "skipped"
        notes += _skipped_words(kept, now)
    else:
        metrics = (_outcome(kept, now),)
        if now.status == "ok":
            metrics += (
                *speed_verdicts(kept, now, thresholds),
                *memory_verdicts(kept, now, thresholds),
                *boundary_verdicts(kept, now, thresholds),
                *answer_verdicts(kept, now),
            )
            notes += _notes(kept, now, thresholds)
        else:
            # Why settings no longer fit is best told by what still does.
            metrics += tuple(boundary_verdicts(kept, now, thresholds))
        verdict = overall(metrics)
        if kept is None and not now.reference and verdict in ("same", "undecided"):
            verdict = "new"
    return EntryVerdict(
        name=now.name,
        verdict=verdict,
        metrics=metrics,
        environment_changes=environment.changes(now.environment),
        notes=(*notes, *now.notes),
        reproduce=now.reproduce,
        date=now.date,
        seconds=now.seconds,
    )


def _asks_otherwise(kept: Kept, now: EntryRecord) -> bool:
    """Whether requests, context or the words for every launch are others; unknown is alike."""
    before, after = kept.record.environment.task, now.environment.task
    return bool(before and after and before != after)


def _outcome(kept: Kept | None, now: EntryRecord) -> MetricVerdict:
    before = kept.record if kept else None
    if now.status == "ok":
        if before is not None and before.status != "ok":
            told = f"it runs again; kept was: {_failure_words(before)}"
            return MetricVerdict(metric="outcome", verdict="recovered", words=told)
        return MetricVerdict(metric="outcome", verdict="same", words="it ran")
    words = _failure_words(now)
    if before is not None and before.status != "ok":
        was = _failure_words(before)
        told = f"fails as it was kept: {words}" if words == was else f"{words}; kept was: {was}"
        return MetricVerdict(metric="outcome", verdict="failing", words=told)
    if now.status == "rejected":
        told = f"the runtime no longer takes the settings: {words}"
        return MetricVerdict(metric="outcome", verdict="preset_rejected", words=told)
    return MetricVerdict(metric="outcome", verdict="new_failure", words=words)


def _failure_words(record: EntryRecord) -> str:
    failure = record.failure or Failure(record.status, "")
    kind = failure.kind.replace("_", " ")
    reason = f" ({failure.reason.replace('_', ' ')})" if failure.reason else ""
    stage = f" at the stage {failure.stage}" if failure.stage else ""
    return f"{kind}{reason}{stage}" + (f": {failure.evidence}" if failure.evidence else "")


def _skipped_words(kept: Kept | None, now: EntryRecord) -> Iterator[str]:
    why = "not on this machine" if now.status == "missing_hardware" else "not run"
    evidence = now.failure.evidence if now.failure else ""
    yield f"{why}: {evidence}" if evidence else why
    if kept and kept.nights:
        yield f"last measured {kept.nights[-1].date}"


def _notes(kept: Kept | None, now: EntryRecord, thresholds: Thresholds) -> Iterator[str]:
    if kept is None:
        return
    before = kept.record.winner
    if before and now.winner and before.digest != now.winner.digest:
        yield "other settings than the kept ones were measured: memory is not compared"
    for key, value in unsteady(kept, now, thresholds).items():
        yield (
            f"launches vary more than in the kept nights: {key} by {value.sd or 0:.1%} a launch, "
            f"before by {_usual_sd(kept.levels(key)):.1%}"
        )
    for one in reference_moved(kept, now, thresholds):
        yield (
            f"the reference itself is {one.verdict} in {one.metric} than in the kept nights: "
            "the machine changed, not only the runtime"
        )


def _usual_sd(levels: list[list[NightValue]]) -> float:
    values = [night.sd for level in levels for night in level if night.sd is not None]
    return sum(values) / len(values) if values else 0.0
