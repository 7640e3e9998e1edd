"""Readers of an entry's measurements from the studies of its commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from autofit.model.sizes.kv_cache import kv_types
from autofit.quality.prompt_set import read_answers
from autofit.quality.recorded_answer import RecordedAnswer
from autofit.runtime.command.redaction import redact_command, redact_variables
from autofit.study.study_folder import Study
from autofit.sweep.entry_record import (
    BoundaryRow,
    EntryFailure,
    EntryRecord,
    LaunchValues,
    MeasuredSettings,
    Status,
)
from autofit.text_format import as_fast
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import extremes
from autofit.trial.metric import METRIC_KEYS, METRICS, median_metric
from autofit.trial.outcome import outcome_from_dict
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# The reasons why a runtime rejects settings. A bad model file is not one of them.
_REJECTED_SETTINGS = {
    "unknown_flag",
    "bad_value",
    "combination",
    "not_applied",
    "context_exceeded",
    None,
}
# A neighbour that is this much faster than the winner gets a note.
_NOTABLE_SPEEDUP = 1.03


def with_tune(record: EntryRecord, study: Study) -> EntryRecord:
    """Return the record with the winner and the boundaries of a concluded tune."""
    result = study.result or {}
    trials = study.trials()
    winner = result.get("winner")
    record = replace(record, notes=tuple(result.get("notes", ())))
    if winner is None:
        failed = next((one for one in trials if not one.is_completed), None)
        if failed is None:
            return _with_failure(record, EntryFailure("nothing_fits", "no winner"))
        return _with_failure(record, EntryFailure.of(failed.outcome))
    candidate = Candidate(winner["params"])
    # If the baseline won, its launches did not have the flags that are written out here.
    is_own = winner.get("is_baseline", False)
    source = trials[0].candidate if is_own and trials else candidate
    launched = [one for one in trials if one.candidate == source and one.is_completed]
    chosen = [one for one in launched if one.phase == "confirm"] or [
        one for one in launched if one.phase != "prove"
    ]
    asked = next(
        (t for t in trials if t.purpose.role == "answers" and t.candidate == candidate), None
    )
    rows = [BoundaryRow.from_result(row) for row in result.get("boundary", ())]
    own = winner.get("layout"), kv_types(candidate)[0]
    own_rows = tuple(row for row in rows if (row.layout, row.cache_type) == own)
    return replace(
        record,
        winner=_settings(candidate, winner["argv"], winner.get("env", {})),
        boundary=own_rows or tuple(rows[:1]),
        answers=_answers(study, asked),
        **_figures(chosen, study.header.workload),
    )


def with_remeasurement(record: EntryRecord, study: Study) -> EntryRecord:
    """Return the record with a concluded remeasurement of winner, old runtime and neighbours."""
    result = study.result or {}
    by_number = {trial.number: trial for trial in study.trials()}
    workload = study.header.workload

    def trials_of(side: Mapping[str, Any] | None) -> list[Trial]:
        numbers = side["trials"] if side else ()
        return [by_number[number] for number in numbers if number in by_number]

    winner, before = result["kept"], result["before"]
    ours, theirs = trials_of(winner), trials_of(before)
    notes = list(result.get("notes", ()))
    for side in (before, *result["neighbours"]):
        if side is not None and side["outcome"]["kind"] != "completed":
            kind = side["outcome"]["kind"].replace("_", " ")
            notes.append(f"{side['name']}: {kind} ({side['outcome']['evidence']})")
    for side in result["neighbours"]:
        ratio = _speed_ratio(trials_of(side), ours, workload)
        if ratio is not None and ratio > _NOTABLE_SPEEDUP:
            notes.append(f"{side['name']} was {as_fast(ratio)}")
    record = replace(
        record,
        winner=_settings(Candidate(winner["params"]), winner["argv"], winner["env"]),
        reference=tuple(_values(trial, workload) for trial in theirs),
        answers=_answers(study, ours[0] if ours else None),
        reference_answers=_answers(study, theirs[0] if theirs else None),
        notes=tuple(notes),
        **_figures(ours, workload),
    )
    outcome = outcome_from_dict(winner["outcome"])
    if outcome.kind == "completed":
        return record
    return _with_failure(record, EntryFailure.of(outcome))


def read_boundaries(study: Study) -> tuple[BoundaryRow, ...]:
    """Return the boundaries that a concluded probe has found."""
    rows = (study.result or {}).get("boundary", ())
    return tuple(BoundaryRow.from_result(row) for row in rows)


def _with_failure(record: EntryRecord, failure: EntryFailure) -> EntryRecord:
    is_rejected = failure.kind == "rejected" and failure.reason in _REJECTED_SETTINGS
    status: Status = "rejected" if is_rejected else "failed"
    return replace(record, status=status, failure=failure)


def _speed_ratio(
    trials: Sequence[Trial], winner: Sequence[Trial], workload: Workload
) -> float | None:
    """Return the speed of some settings divided by the winner's, or None if unknown."""
    sides = [
        [value for trial in side if (value := _values(trial, workload).request_s)]
        for side in (trials, winner)
    ]
    return median(sides[1]) / median(sides[0]) if all(sides) else None


def _figures(trials: Sequence[Trial], workload: Workload) -> dict[str, Any]:
    measured = [trial.measurement for trial in trials if trial.measurement]
    return {
        "launches": tuple(_values(trial, workload) for trial in trials),
        # Memory of other processes is not part of the runtime's peak.
        "peak_mib": extremes([m.taken_mib() for m in measured], max),
        "free_mib": extremes([m.free_mib for m in measured], min),
    }


def _values(trial: Trial, workload: Workload) -> LaunchValues:
    if not trial.is_completed:
        return LaunchValues()
    values = {METRIC_KEYS[m]: median_metric(trial.measurement, workload, m) for m in METRICS}
    return LaunchValues(**values, load_s=trial.measurement.load_s if trial.measurement else None)


def _answers(study: Study, trial: Trial | None) -> tuple[RecordedAnswer, ...]:
    found = read_answers(study, trial.number) if trial is not None else None
    return found.recorded if found else ()


def _settings(
    candidate: Candidate, argv: Sequence[str], env: Mapping[str, str]
) -> MeasuredSettings:
    return MeasuredSettings(
        params=dict(candidate.params),
        argv=redact_command(argv),
        digest=candidate.key,
        env=redact_variables(env),
    )
