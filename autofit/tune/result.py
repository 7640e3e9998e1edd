"""The result of a tune: the document that `tune --json` prints and that a study keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autofit.model.sizes.kv_cache import KvTypes, kv_types
from autofit.quality.answer_check import AnswerCheck
from autofit.runtime.command.argv_writer import UnsupportedSetting, make_launch_plan
from autofit.session.best_so_far import metric_estimates
from autofit.session.budget import spending
from autofit.session.finalist import Proof
from autofit.session.machine_conditions import describe_conditions
from autofit.session.ranking import Ranking
from autofit.session.task import Task
from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate
from autofit.trial.device import HOST_NAME
from autofit.trial.outcome import outcome_to_dict
from autofit.trial.parameter_groups import KV_TYPE_PARAMS
from autofit.trial.purpose import PHASES
from autofit.trial.trial import Overhead, Trial
from autofit.tune.cliffs import find_tune_cliffs, unsteady_notes
from autofit.tune.expert_cost import ExpertCost
from autofit.tune.explore import Boundary
from autofit.tune.front import find_front
from autofit.tune.recommend import Recommendation


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """The result of a tune: the findings of all its phases.

    Attributes:
        is_shared: whether other workers made some of the trials.
        ranking: the result of the rounds, or None without rounds.
        recommendation: the recommendation, or None if no candidate can be recommended.
        ending: the reason why the search ended, as JSON data.
        kv_scores: the checks of narrow KV types.
        overhead: the time and planner calls after the last launch.
        seconds: the time of the whole tune, with earlier runs of the study.
    """

    task: Task
    study: Study
    trials: Sequence[Trial]
    baseline: Trial
    ranking: Ranking | None
    recommendation: Recommendation | None
    boundaries: Sequence[Boundary]
    seconds: float
    notes: Sequence[str]
    kv_scores: Mapping[KvTypes, AnswerCheck] = field(default_factory=dict)
    ending: Mapping[str, object] = field(default_factory=dict)
    overhead: Overhead = field(default_factory=Overhead)
    expert_costs: Sequence[ExpertCost] = ()
    is_shared: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON data; `docs/` lists the keys."""
        task, recommendation = self.task, self.recommendation
        gain = recommendation.gain if recommendation else None
        answers = recommendation.answers if recommendation else None
        return {
            "study": str(self.study.path),
            "model": str(task.model_path),
            "runtime": task.runtime.name,
            "workload": task.workload.name,
            "objective": task.objective,
            "baseline": {
                "params": dict(self.baseline.candidate.params),
                "argv": list(self.baseline.argv),
                "estimates": self._estimates(self.baseline.candidate),
                "outcome": outcome_to_dict(self.baseline.outcome),
            },
            "winner": self._winner(recommendation.proof) if recommendation else None,
            "expert_memory": [cost.to_dict() for cost in self.expert_costs],
            "gain": gain.to_dict() if gain else None,
            "tie": self._is_tie(),
            "boundary": [boundary.to_dict() for boundary in self.boundaries],
            "cliffs": [cliff.to_dict() for cliff in find_tune_cliffs(self.trials, task)],
            "launches": len(self.trials if self.is_shared else self.study.started()),
            "launches_by_phase": {
                phase: sum(trial.phase == phase for trial in self.trials) for phase in PHASES
            },
            "seconds_by_phase": {
                phase: round(sum(t.seconds for t in self.trials if t.phase == phase), 1)
                for phase in PHASES
            },
            "spent": spending(self.trials, self.overhead),
            "search": dict(self.ending) or None,
            "outcomes": dict(Counter(trial.outcome.kind for trial in self.trials)),
            "seconds": round(self.seconds, 1),
            "conditions": describe_conditions(self.trials),
            "pareto": self._front() if task.keeps_front else None,
            "preset": None,
            "confirmation": self.ranking.to_dict() if self.ranking else None,
            "answers": answers.to_dict() if answers else None,
            "kv_scores": [_kv_score(types, check) for types, check in self.kv_scores.items()],
            "notes": [*self.notes, *unsteady_notes(self.trials, task)],
        }

    def _winner(self, proof: Proof) -> dict[str, Any]:
        task, finalist = self.task, proof.finalist
        candidate = finalist.candidate
        plan = make_launch_plan(
            task.runtime,
            task.model_path,
            candidate,
            purpose="own_fit" if finalist.is_verbatim else "preset",
            rpc=task.rpc,
            extra_args=task.extra_args,
            env=task.env,
            wrapper=task.wrapper,
        )
        if isinstance(plan, UnsupportedSetting):  # the proof had exactly these settings
            raise TypeError(plan.message)
        plan = plan.shown
        measured = proof.trial.measurement
        # The baseline with explicit settings has the measurements of the baseline.
        source = self.baseline.candidate if finalist.is_baseline else candidate
        return {
            "params": dict(candidate.params),
            "argv": list(plan.argv),
            "env": dict(plan.env),
            "layout": finalist.layout,
            "is_baseline": finalist.is_baseline,
            "estimates": self._estimates(source),
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

    def _estimates(self, candidate: Candidate) -> dict[str, Any]:
        """Return estimates from the launches of the rounds, or else from all measured launches."""
        launches = [
            trial
            for trial in self.trials
            if trial.candidate == candidate
            and trial.measurement
            and trial.is_completed
            and trial.phase != "prove"
        ]
        rounds = [trial for trial in launches if trial.phase == "confirm"]
        measured = [t.measurement for t in rounds or launches if t.measurement]
        return metric_estimates(measured, self.task.workload)

    def _is_tie(self) -> bool:
        """Return whether winner and baseline are shown to be equally fast.

        If the baseline itself won, a tie means that another contender is as fast.
        """
        if self.recommendation is None or self.ranking is None:
            return False
        finalist = self.recommendation.proof.finalist
        if finalist.is_baseline:
            return bool(self.ranking.tied)
        if not self.ranking.has(finalist.candidate.key):
            return False
        against = self.ranking.standing(finalist.candidate.key).against_baseline
        return against is not None and against.verdict == "tie"

    def _front(self) -> list[dict[str, Any]]:
        """Return the front without poor KV types, with a mark on the winner if that is in it."""
        winner = self.recommendation.proof.finalist.candidate if self.recommendation else None
        poor = {types for types, check in self.kv_scores.items() if check.is_acceptable is False}
        trials = [trial for trial in self.trials if kv_types(trial.candidate) not in poor]
        return [
            {**point.to_dict(), "is_preset": point.candidate == winner}
            for point in find_front(trials, self.task)
        ]


def _kv_score(types: KvTypes, check: AnswerCheck) -> dict[str, Any]:
    data = check.to_dict()
    return {
        **dict(zip(KV_TYPE_PARAMS, types, strict=True)),
        **{key: data[key] for key in ("verdict", "holds", "reference", "quality")},
    }
