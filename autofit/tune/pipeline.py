"""A tune from its first launch to its proven winner: the phases in order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from autofit.memory.memory_model import MemoryModel
from autofit.model.sizes.kv_cache import DEFAULT_KV_TYPE, format_kv_types
from autofit.quality.output_evaluator import OutputEvaluator
from autofit.quality.quality_gate import QualityGate
from autofit.runtime.server.request_plan import plan_measurement
from autofit.search.optuna_study import SearchStudy
from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS
from autofit.session.budget_advice import BudgetAdvice, tune_need
from autofit.session.candidate_record import CandidateRecord
from autofit.session.events import Incumbent, Listener, Notice, PhaseStarted
from autofit.session.finalist import RUNTIME_FIT, Finalist, Proof
from autofit.session.machine_load import thread_words
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.metric import cost, median_metric, time_ratio
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial
from autofit.tune.baseline_proof import BaselineProof, own_choice
from autofit.tune.default_point import default_point
from autofit.tune.expert_cost import ExpertCost, expert_costs
from autofit.tune.explore import Explorer
from autofit.tune.finalist_proof import Prover, why
from autofit.tune.front import END_OBJECTIVES
from autofit.tune.prove import spare_rooms
from autofit.tune.race import Confirmer
from autofit.tune.recommend import Recommender
from autofit.tune.result import ResultParts, result_document
from autofit.tune.screen import Shortlist

_BASELINE_REPEATS = 3
# What of it is used before the KV type that the search leans on is looked at.
_SHARE_BEFORE_KV = 0.5
# What of the launches the search may use where the ends of a front are searched for too.
_SHARE_BEFORE_ENDS = 0.7


@dataclass(slots=True)
class Tune:
    """One tune; `run` goes through all phases and returns the result document.

    `checks_answers` is off where the answers of a model mean nothing. `shortlist_type` is what
    chooses who meets in rounds.
    """

    task: Task
    runner: TrialRunner
    memory: MemoryModel
    search: SearchStudy
    emit: Listener
    seed: int
    notes: list[str] = field(default_factory=list)
    checks_answers: bool = True
    shortlist_type: type[Shortlist] = Shortlist
    _best_cost: float = math.inf
    _baseline_value: float | None = None
    _advice: BudgetAdvice = field(init=False)

    def __post_init__(self) -> None:
        self._advice = BudgetAdvice(self.runner.budget, self._note)

    @property
    def confirmer(self) -> Confirmer:
        """What meets candidates with the baseline."""
        return Confirmer(self.task, self.runner, self.emit, self.seed)

    @property
    def problem(self) -> Problem:
        """What is searched."""
        return self.search.problem

    def run(self) -> dict[str, Any]:
        """Baseline, boundary, search, confirm, prove."""
        baseline = self._baseline()
        explorer = Explorer(
            self.task,
            self.search,
            self.runner,
            self._watching(baseline),
            self.memory.full_context_check,
        )
        self._seed_search(explorer, baseline)
        for candidate in explorer.starting_candidates():
            self.memory.ask_planner(candidate)
        proofs = self._proofs(explorer)
        verdicts = self._verdicts(baseline)
        finalists = self._finalists(explorer, self.shortlist_type(proofs, verdicts, self.emit))
        confirmation = self.confirmer.confirm(baseline, finalists)
        recommender = self._recommender(proofs, verdicts)
        self.emit(PhaseStarted("prove"))
        proof, gain = recommender.recommend(baseline, finalists, confirmation)
        if proof is not None:
            self._look_over(proof, baseline)
        return result_document(
            ResultParts(
                task=self.task,
                study=self.runner.study,
                trials=self.runner.trials,
                baseline=baseline,
                confirmation=confirmation,
                proof=proof,
                gain=gain,
                boundaries=explorer.boundaries,
                search=explorer.ending,
                rest=self.runner.budget.timer.overhead,
                seconds=self.runner.budget.spent_s,
                notes=self.notes,
                answers=verdicts.answers,
                kv_scores=verdicts.scored,
                expert_costs=self._expert_costs(proof),
            )
        )

    def _proofs(self, explorer: Explorer) -> Prover:
        """What proves finalists, and tells the search of it."""

        def tell(finalist: Finalist, trial: Trial) -> None:
            if finalist.point is not None:
                explorer.tell_proof(finalist.point, finalist.candidate, trial)

        def is_ruled_out(finalist: Finalist) -> bool:
            return finalist.point is not None and self.search.is_ruled_out(finalist.point)

        return Prover(self.task, self.runner, self.problem, self._note, tell, is_ruled_out)

    def _verdicts(self, baseline: Trial) -> QualityGate:
        """What judges answers; without anything to ask where they mean nothing."""
        reference = Finalist(baseline.candidate, RUNTIME_FIT, is_verbatim=True, is_baseline=True)
        evaluator = OutputEvaluator(self.runner, self.task, reference)
        return QualityGate(evaluator if self.checks_answers else None, self._note)

    def _recommender(self, proofs: Prover, verdicts: QualityGate) -> Recommender:
        task, runner, note = self.task, self.runner, self._note
        return Recommender(
            task=task,
            trials=runner.trials,
            confirmer=self.confirmer,
            proofs=proofs,
            own_proof=BaselineProof(task, runner, self.memory.planner, note),
            verdicts=verdicts,
            note=note,
        )

    def _expert_costs(self, proof: Proof | None) -> list[ExpertCost]:
        if proof is None:
            return []
        winner = proof.finalist.candidate
        return expert_costs(winner, self.runner.trials, self.memory, self.task)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.emit(Notice(text))

    def _baseline(self) -> Trial:
        self.emit(PhaseStarted("baseline"))
        trial = self.runner.run(
            TrialPurpose("baseline", "baseline"),
            self.task.baseline,
            plan_measurement(
                self.task.workload,
                512,
                repeats=_BASELINE_REPEATS,
                is_short=True,
                enough_s=self.runner.budget.repeat_limit_s,
            ),
            layout=RUNTIME_FIT,
            is_verbatim=True,
        )
        if not trial.is_completed:
            words = own_choice(self.task)
            self._note(f"{words} failed ({why(trial)}), so there is no gain to tell")
        taken = thread_words(trial, self.task.cores)
        if taken:
            self._note(taken)
        self._look_at_budget(trial)
        return trial

    def _look_at_budget(self, trial: Trial) -> None:
        """Say beforehand what a budget that is too small allows."""
        workload, most = self.task.workload, self.runner.budget.max_launches
        self._advice.look_at(trial, lambda first: tune_need(first, workload, most))

    def _watching(self, baseline: Trial) -> Listener:
        """The listener of the search, which also tells when something beats all before."""
        self._baseline_value = self._value(baseline)

        def watch(event: object) -> None:
            self.emit(event)  # type: ignore[arg-type]
            trial = getattr(event, "trial", None)
            if isinstance(trial, Trial):
                self._look_at_budget(trial)
                if trial.is_completed and trial.phase in {"boundary", "search"}:
                    self._tell_best(trial)

        self.runner.emit = watch
        return watch

    def _value(self, trial: Trial) -> float | None:
        task = self.task
        return median_metric(trial.measurement, task.workload, task.objective)

    def _tell_best(self, trial: Trial) -> None:
        """Tell of a trial of the search that beats all before."""
        value, metric, reference = (
            self._value(trial),
            self.task.objective,
            self._baseline_value,
        )
        if value is None or cost(value, metric) >= self._best_cost:
            return
        self._best_cost = cost(value, metric)
        gain = time_ratio(reference, value, metric) if reference else None
        self.emit(Incumbent(trial.number, trial.candidate, metric, value, gain))

    def _tell_best_anew(self, explorer: Explorer) -> None:
        """Tell of the best that is left after the best so far was ruled out."""
        self._best_cost = math.inf
        for one in explorer.ranked()[:1]:
            self._tell_best(one.trial)

    def _seed_search(self, explorer: Explorer, baseline: Trial) -> None:
        """Tell the search what the baseline showed, where its settings are a point."""
        point = default_point(self.task, self.problem, baseline)
        if baseline.is_completed and point is not None:
            explorer.tell(point, baseline)

    def _finalists(self, explorer: Explorer, shortlist: Shortlist) -> list[Finalist]:
        """Search until there are finalists that may meet in rounds, the best first.

        The KV type that the search leans on is looked at half-way, so that a poor one does not
        use up what the search may launch.
        """
        share = _SHARE_BEFORE_ENDS if self.task.keeps_front else 1.0
        explorer.explore(share=share * _SHARE_BEFORE_KV)
        is_poor = shortlist.look_ahead(_launched(explorer))
        if not is_poor or self._leave_out_poor(explorer, shortlist.verdicts):
            self._explore(explorer, share)
        verdicts = shortlist.verdicts
        while True:
            poor = set(verdicts.poor)
            finalists = shortlist.settle(_launched(explorer))
            if finalists is not None:
                return finalists
            if set(verdicts.poor) == poor:  # the best fell at full context
                self._tell_best_anew(explorer)
            elif not self._leave_out_poor(explorer, verdicts):
                continue
            self._explore(explorer, 1.0)

    def _explore(self, explorer: Explorer, share: float) -> None:
        explorer.explore(share=share)
        if self.task.keeps_front:
            for metric in END_OBJECTIVES:
                explorer.explore_end(metric, seed=self.seed)

    def _leave_out_poor(self, explorer: Explorer, verdicts: QualityGate) -> bool:
        """Take KV types that are not good enough out of the search; whether any are left."""
        space, is_poor = self.problem.space, verdicts.is_poor
        explorer.want_only(lambda point: not is_poor(Candidate(space.params_of(point))))
        poor = f"KV {' and '.join(map(format_kv_types, verdicts.poor))}"
        if not self.problem.has_points:
            self._note(f"the search space has nothing without {poor}")
            return False
        if self.runner.budget.share_used >= 1:
            self._note(
                f"the budget leaves nothing to search without {poor}; "
                f"--kv-floor {DEFAULT_KV_TYPE} leaves narrower types out from the start"
            )
            return False
        self._note(f"the search goes on without {poor}")
        self._tell_best_anew(explorer)
        return True

    def _look_over(self, proof: Proof, baseline: Trial) -> None:
        """Note what the user should know of a winner."""
        candidate = baseline.candidate if proof.finalist.is_baseline else proof.finalist.candidate
        record = CandidateRecord(self.task, self.runner.trials)
        if self.task.requirements and not record.keeps(candidate):
            wanted = ", ".join(str(requirement) for requirement in self.task.requirements)
            self._note(f"the winner misses what was required ({wanted}): nothing found keeps it")
        if self._is_at_boundary(proof.finalist):
            return  # what is to spare is not enough for a layer, as a launch has shown
        estimate = self.memory.predict(proof.finalist.candidate)
        for room in spare_rooms(proof, estimate, self.task):
            self._note(room.text)

    def _is_at_boundary(self, finalist: Finalist) -> bool:
        """Whether one layer fewer in system RAM is known not to fit."""
        point = finalist.point
        if point is None or HOST_LAYERS_AXIS not in point:
            return False
        fewer = {**point, HOST_LAYERS_AXIS: int(point[HOST_LAYERS_AXIS]) - 1}
        return self.search.is_ruled_out(fewer)


def _launched(explorer: Explorer) -> list[Finalist]:
    """The candidates that were launched and ran, the best first."""
    found: dict[str, Finalist] = {}
    for one in explorer.ranked():
        layout = str(one.point.get(LAYOUT_AXIS, ""))
        found.setdefault(one.candidate.key, Finalist(one.candidate, layout, one.point))
    return list(found.values())
