"""What the studies of an entry say it measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from autofit.model.sizes.kv_cache import kv_types
from autofit.quality.prompt_set import read_answers
from autofit.quality.recorded_answer import RecordedAnswer
from autofit.runtime.command.redaction import redact_command, redact_variables
from autofit.study.study_folder import Study
from autofit.sweep.entry_record import BoundaryRow, Failure, LaunchValues, Status, Winner
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import extremes
from autofit.trial.metric import METRIC_KEYS, METRICS, median_metric
from autofit.trial.outcome import outcome_from_dict
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# What a runtime says of settings that it does not take; a bad model file is none of them.
_REFUSALS = {"unknown_flag", "bad_value", "combination", "not_applied", "context_exceeded", None}
# A neighbour that is so much faster than the winner is worth a word.
_NOTABLE = 1.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Fields of an `EntryRecord` that a study tells."""

    status: Status = "ok"
    failure: Failure | None = None
    winner: Winner | None = None
    launches: tuple[LaunchValues, ...] = ()
    reference: tuple[LaunchValues, ...] = ()
    peak_mib: Mapping[str, float | None] = field(default_factory=dict)
    free_mib: Mapping[str, float | None] = field(default_factory=dict)
    boundary: tuple[BoundaryRow, ...] = ()
    answers: tuple[RecordedAnswer, ...] = ()
    reference_answers: tuple[RecordedAnswer, ...] = ()
    notes: tuple[str, ...] = ()


def of_tune(study: Study) -> Measured:
    """What a concluded tune says of its winner; its boundary is that of the winner's layout."""
    result = study.result or {}
    trials = study.trials()
    told = result.get("winner")
    notes = tuple(result.get("notes", ()))
    if told is None:
        failed = next((one for one in trials if not one.is_completed), None)
        failure = Failure.of(failed.outcome) if failed else Failure("nothing_fits", "no winner")
        return Measured(status=_status(failure), failure=failure, notes=notes)
    candidate = Candidate(told["params"])
    is_own = told.get("is_baseline", False)
    # The runtime's own choice was measured as the baseline: only its flags are written out.
    source = trials[0].candidate if is_own and trials else candidate
    launched = [one for one in trials if one.candidate == source and one.is_completed]
    chosen = [one for one in launched if one.phase == "confirm"] or [
        one for one in launched if one.phase != "prove"
    ]
    interview = next(
        (t for t in trials if t.purpose.role == "answers" and t.candidate == candidate), None
    )
    rows = [BoundaryRow.from_dict(row) for row in result.get("boundary", ())]
    layout, kind = told.get("layout"), kv_types(candidate)[0]
    return Measured(
        winner=_winner(candidate, told["argv"], told.get("env", {})),
        boundary=tuple(r for r in rows if (r.layout, r.cache_type) == (layout, kind))
        or tuple(rows[:1]),
        answers=_answers(study, interview),
        notes=notes,
        **_figures(chosen, study.header.workload),
    )


def of_remeasure(study: Study) -> Measured:
    """What a concluded remeasurement says of the winner, the old runtime and the neighbours."""
    result = study.result or {}
    by_number = {trial.number: trial for trial in study.trials()}
    workload = study.header.workload

    def trials_of(side: Mapping[str, Any] | None) -> list[Trial]:
        numbers = side["trials"] if side else ()
        return [by_number[number] for number in numbers if number in by_number]

    told, before = result["kept"], result["before"]
    ours, theirs = trials_of(told), trials_of(before)
    outcome = outcome_from_dict(told["outcome"])
    failure = None if outcome.kind == "completed" else Failure.of(outcome)
    notes = list(result.get("notes", ()))
    for side in (before, *result["neighbours"]):
        if side is not None and side["outcome"]["kind"] != "completed":
            kind = side["outcome"]["kind"].replace("_", " ")
            notes.append(f"{side['name']}: {kind} ({side['outcome']['evidence']})")
    notes += [
        f"{side['name']} was {ratio:.2f} times as fast"
        for side in result["neighbours"]
        if (ratio := _speed(trials_of(side), ours, workload)) > _NOTABLE
    ]
    return Measured(
        status=_status(failure),
        failure=failure,
        winner=_winner(Candidate(told["params"]), told["argv"], told["env"]),
        reference=tuple(_values(trial, workload) for trial in theirs),
        answers=_answers(study, ours[0] if ours else None),
        reference_answers=_answers(study, theirs[0] if theirs else None),
        notes=tuple(notes),
        **_figures(ours, workload),
    )


def boundary_of(study: Study) -> tuple[BoundaryRow, ...]:
    """The boundaries that a concluded probe has found."""
    rows = (study.result or {}).get("boundary", ())
    return tuple(BoundaryRow.from_dict(row) for row in rows)


def _speed(trials: Sequence[Trial], winner: Sequence[Trial], workload: Workload) -> float:
    """How many times as fast a neighbour served a request, 0 where that is not known."""
    sides = [
        [value for trial in side if (value := _values(trial, workload).request_s)]
        for side in (trials, winner)
    ]
    return median(sides[1]) / median(sides[0]) if all(sides) else 0.0


def _status(failure: Failure | None) -> Status:
    if failure is None:
        return "ok"
    return "rejected" if failure.kind == "rejected" and failure.reason in _REFUSALS else "failed"


def _figures(trials: Sequence[Trial], workload: Workload) -> dict[str, Any]:
    measured = [trial.measurement for trial in trials if trial.measurement]
    return {
        "launches": tuple(_values(trial, workload) for trial in trials),
        # What others hold is not the runtime's to answer for.
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


def _winner(candidate: Candidate, argv: Sequence[str], env: Mapping[str, str]) -> Winner:
    return Winner(
        params=dict(candidate.params),
        argv=redact_command(argv),
        digest=candidate.key,
        env=redact_variables(env),
    )
