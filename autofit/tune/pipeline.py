"""The pipeline of a tune: its phases in order, from the first launch to the proven winner.

    measure_baseline   launches the settings that run without tuning
    find_finalists     boundary and search, until candidates may enter the rounds
    race               the best candidates against the baseline, in interleaved rounds
    recommend          the fastest that runs at full context with acceptable answers

Each phase gets the results of the phases before it. Every trial passes through the runner, which
writes it to the study and gives it to the memory model.
"""

from __future__ import annotations

from autofit.memory.memory_model import MemoryModel
from autofit.model.sizes.kv_cache import DEFAULT_KV_TYPE, format_kv_types
from autofit.quality.quality_gate import QualityGate
from autofit.search.optuna_study import SearchStudy
from autofit.session.events import PhaseStarted
from autofit.session.finalist import Finalist
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.trial import Trial
from autofit.tune.baseline import (
    find_baseline_point,
    measure_baseline,
    without_flash_attention,
)
from autofit.tune.expert_cost import expert_costs
from autofit.tune.explore import Exploration
from autofit.tune.prove import Prover
from autofit.tune.race import race
from autofit.tune.recommend import Recommender, add_warnings
from autofit.tune.result import TuneResult
from autofit.tune.screen import SearchAgain, screen_leader, select_finalists

# The leading KV type is scored once this share of the search budget is used.
_SHARE_BEFORE_KV = 0.5
# The share of the budget for the search if a search for a front follows.
_SHARE_BEFORE_FRONT = 0.7


def run_tune(
    task: Task,
    runner: TrialRunner,
    memory: MemoryModel,
    search: SearchStudy,
    gate: QualityGate,
    *,
    seed: int,
) -> TuneResult:
    """Run all phases of a tune.

    Args:
        task: the task.
        runner: launches candidates, or takes their trials from the study.
        memory: observes every trial of the runner.
        search: the points of the task's search space.
        gate: judges the answers of candidates.
        seed: decides the order of launches in rounds, and the search for a front.

    Raises:
        Interrupted: the user stopped the run.
        AutofitError: the run cannot continue.
    """
    baseline = measure_baseline(task, runner)
    task = without_flash_attention(task, baseline)
    search.search_in(task.space)
    exploration = _begin_exploration(task, runner, memory, search, baseline)
    prover = Prover(task, runner, exploration)
    finalists = _find_finalists(exploration, prover, gate, seed)
    ranking = race(task, runner, baseline, finalists, seed=seed)
    runner.emit(PhaseStarted("prove"))
    recommendation = Recommender(
        task=task, runner=runner, planner=memory.planner, prover=prover, gate=gate, seed=seed
    ).recommend(baseline, finalists, ranking)
    if recommendation is not None:
        add_warnings(recommendation, exploration)
    costs = []
    if recommendation is not None:
        winner = recommendation.proof.finalist.candidate
        costs = expert_costs(winner, runner.trials, memory, task)
    return TuneResult(
        task=task,
        study=runner.study,
        trials=runner.trials,
        baseline=baseline,
        ranking=ranking,
        recommendation=recommendation,
        boundaries=exploration.boundaries,
        ending=exploration.ending,
        kv_scores=gate.scored,
        expert_costs=costs,
        notes=runner.notes,
        overhead=runner.budget.timer.overhead,
        seconds=runner.budget.spent_s,
    )


def _begin_exploration(
    task: Task, runner: TrialRunner, memory: MemoryModel, search: SearchStudy, baseline: Trial
) -> Exploration:
    """Return an exploration that knows the baseline and the planner's estimates."""
    exploration = Exploration(task, runner, memory, search, baseline)
    point = find_baseline_point(task, search.problem, baseline)
    if baseline.is_completed and point is not None:
        exploration.add(point, baseline)
    for candidate in exploration.expected_boundaries():
        memory.ask_planner(candidate)
    return exploration


def _find_finalists(
    exploration: Exploration, prover: Prover, gate: QualityGate, seed: int
) -> list[Finalist]:
    """Search until some candidates may enter the rounds, and return them, the best first.

    The KV type of the best candidate is scored half-way, so that a poor type does not use up the
    budget.
    """
    has_front = exploration.task.keeps_front
    share = _SHARE_BEFORE_FRONT if has_front else 1.0
    exploration.search_until(share * _SHARE_BEFORE_KV)
    screened = screen_leader(exploration.finalists(), prover, gate)
    if screened is None or _may_continue(exploration, gate, screened):
        _search(exploration, share, seed)
    while True:
        selected = select_finalists(exploration.finalists(), prover, gate)
        if not isinstance(selected, SearchAgain):
            return selected
        if _may_continue(exploration, gate, selected):
            _search(exploration, 1.0, seed)


def _search(exploration: Exploration, share: float, seed: int) -> None:
    exploration.search_until(share)
    if exploration.task.keeps_front:
        exploration.search_front(seed)


def _may_continue(exploration: Exploration, gate: QualityGate, again: SearchAgain) -> bool:
    """Exclude candidates that may not be recommended, and return whether any points are left."""
    if not again.poor_kv:
        exploration.report_best_remaining()
        return True
    exploration.exclude(gate.is_poor)
    runner = exploration.runner
    poor = f"KV {' and '.join(map(format_kv_types, again.poor_kv))}"
    if not exploration.problem.has_points:
        runner.note(f"all candidates of the search space have {poor}, which answers poorly")
        return False
    if runner.budget.share_used >= 1:
        runner.note(
            f"the budget is too small to search without {poor}; --kv-floor "
            f"{DEFAULT_KV_TYPE} leaves narrower types out from the start"
        )
        return False
    runner.note(f"the search continues without {poor}")
    exploration.report_best_remaining()
    return True
