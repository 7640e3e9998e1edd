"""The document that `tune --json` prints and a study keeps as its conclusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autofit.model.sizes.kv_cache import KvTypes, kv_types
from autofit.quality.answer_check import AnswerCheck
from autofit.runtime.command.argv_writer import UnsupportedSetting, make_launch_plan
from autofit.session.budget import spending
from autofit.session.finalist import Proof
from autofit.session.machine_load import host_report
from autofit.session.ranking import Ranking
from autofit.session.task import Task
from autofit.statistics.estimate import Estimate, estimate
from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate
from autofit.trial.device import HOST_NAME
from autofit.trial.metric import METRIC_KEYS, METRICS, pooled_values
from autofit.trial.outcome import outcome_to_dict
from autofit.trial.parameter_groups import KV_TYPE_PARAMS
from autofit.trial.purpose import PHASES
from autofit.trial.trial import Overhead, Trial
from autofit.trial.workload import Workload
from autofit.tune.cliffs import cliffs_of, unsteady_notes
from autofit.tune.expert_cost import ExpertCost
from autofit.tune.explore import Boundary
from autofit.tune.front import front


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultParts:
    """What the phases of a tune brought; `rest` is what was spent after the last launch."""

    task: Task
    study: Study
    trials: Sequence[Trial]
    baseline: Trial
    confirmation: Ranking | None
    proof: Proof | None
    gain: Estimate | None
    boundaries: Sequence[Boundary]
    seconds: float
    notes: Sequence[str]
    answers: AnswerCheck | None = None
    kv_scores: Mapping[KvTypes, AnswerCheck] = field(default_factory=dict)
    search: Mapping[str, object] = field(default_factory=dict)
    rest: Overhead = field(default_factory=Overhead)
    expert_costs: Sequence[ExpertCost] = ()


def result_document(parts: ResultParts) -> dict[str, Any]:
    """The result as JSON data; keys as the README lists them."""
    task, proof = parts.task, parts.proof
    return {
        "study": str(parts.study.path),
        "model": str(task.model_path),
        "runtime": task.runtime.name,
        "workload": task.workload.name,
        "objective": task.objective,
        "baseline": {
            "params": dict(parts.baseline.candidate.params),
            "argv": list(parts.baseline.argv),
            "estimates": _estimates(parts, parts.baseline.candidate),
            "outcome": outcome_to_dict(parts.baseline.outcome),
        },
        "winner": _winner(parts, proof) if proof else None,
        "expert_memory": [cost.to_dict() for cost in parts.expert_costs],
        "gain": parts.gain.to_dict() if proof and parts.gain else None,
        "tie": _is_tie(parts),
        "boundary": [boundary.to_dict() for boundary in parts.boundaries],
        "cliffs": [cliff.to_dict() for cliff in cliffs_of(parts.trials, task)],
        "launches": len(parts.study.started()),
        "launches_by_phase": {
            phase: sum(trial.phase == phase for trial in parts.trials) for phase in PHASES
        },
        "seconds_by_phase": {
            phase: round(sum(trial.seconds for trial in parts.trials if trial.phase == phase), 1)
            for phase in PHASES
        },
        "spent": spending(parts.trials, parts.rest),
        "search": dict(parts.search) or None,
        "outcomes": dict(Counter(trial.outcome.kind for trial in parts.trials)),
        "seconds": round(parts.seconds, 1),
        "conditions": host_report(parts.trials),
        "pareto": _pareto(parts) if task.keeps_front else None,
        "preset": None,
        "confirmation": parts.confirmation.to_dict() if parts.confirmation else None,
        "answers": parts.answers.to_dict() if parts.answers else None,
        "kv_scores": [_kv_score(types, check) for types, check in parts.kv_scores.items()],
        "notes": [*parts.notes, *unsteady_notes(parts.trials, task)],
    }


def _kv_score(types: KvTypes, check: AnswerCheck) -> dict[str, Any]:
    told = check.to_dict()
    return {
        **dict(zip(KV_TYPE_PARAMS, types, strict=True)),
        **{key: told[key] for key in ("verdict", "holds", "reference", "quality")},
    }


def _pareto(parts: ResultParts) -> list[dict[str, Any]]:
    """The front, the candidate of the preset marked; it need not be there.

    Nothing of it has a KV type that was found not good enough.
    """
    winner = parts.proof.finalist.candidate if parts.proof else None
    poor = {types for types, check in parts.kv_scores.items() if check.is_acceptable is False}
    trials = [trial for trial in parts.trials if kv_types(trial.candidate) not in poor]
    return [
        {**point.to_dict(), "is_preset": point.candidate == winner}
        for point in front(trials, parts.task)
    ]


def _winner(parts: ResultParts, proof: Proof) -> dict[str, Any]:
    task, candidate = parts.task, proof.finalist.candidate
    plan = make_launch_plan(
        task.runtime,
        task.model_path,
        candidate,
        purpose="own_fit" if proof.finalist.is_verbatim else "preset",
        rpc=task.rpc,
        extra_args=task.extra_args,
        env=task.env,
        wrapper=task.wrapper,
    )
    if isinstance(plan, UnsupportedSetting):  # it was proven with these very settings
        raise TypeError(plan.message)
    measured = proof.trial.measurement
    # A frozen baseline was measured as the baseline: only its flags are written out.
    source = parts.baseline.candidate if proof.finalist.is_baseline else candidate
    return {
        "params": dict(candidate.params),
        "argv": list(plan.argv),
        "env": dict(plan.env),
        "layout": proof.finalist.layout,
        "is_baseline": proof.finalist.is_baseline,
        "estimates": _estimates(parts, source),
        "peak_mib": dict(measured.peak_mib) if measured else {},
        "taken_mib": measured.taken_mib() if measured else {},
        "free_mib": dict(measured.free_mib) if measured else {},
        "survives": [
            f"another {free_mib:.0f} MiB taken on {name}"
            for name, free_mib in (measured.free_mib if measured else {}).items()
            if free_mib is not None and name != HOST_NAME
        ],
        "proven": True,
        "trial": proof.trial.number,
    }


def _estimates(parts: ResultParts, candidate: Candidate) -> dict[str, Any]:
    """Estimates over launches: those of the confirmation, else all that measured."""
    launches = [
        trial.measurement
        for trial in parts.trials
        if trial.candidate == candidate
        and trial.measurement
        and trial.is_completed
        and trial.phase == "confirm"
    ] or [
        trial.measurement
        for trial in parts.trials
        if trial.candidate == candidate
        and trial.measurement
        and trial.is_completed
        and trial.phase != "prove"
    ]
    workload: Workload = parts.task.workload
    found = {}
    for metric in METRICS:
        told = estimate(pooled_values(launches, workload, metric))
        if told is not None:
            found[METRIC_KEYS[metric]] = told.to_dict()
    return found


def _is_tie(parts: ResultParts) -> bool:
    """Whether winner and baseline were shown to be equally fast.

    When the baseline itself won, a tie is a contender that is as fast as it.
    """
    if parts.proof is None or parts.confirmation is None:
        return False
    if parts.proof.finalist.is_baseline:
        return bool(parts.confirmation.tied)
    try:
        standing = parts.confirmation.standing(parts.proof.finalist.candidate.key)
    except KeyError:
        return False
    return standing.against_baseline is not None and standing.against_baseline.verdict == "tie"
