"""The pipeline of a tune: its phases in order, from the first launch to the proven winner.

    measure_baseline   launches the settings that run without tuning
    find_finalists     boundary and search, until candidates may enter the rounds
    race               the best candidates against the baseline, in interleaved rounds
    recommend          the fastest that runs at full context with acceptable answers

Each phase gets the results of the phases before it. Every trial passes through the runner, which
writes it to the study and gives it to the memory model.
"""

from __future__ import annotations

from autofit.model.sizes.kv_cache import DEFAULT_KV_TYPE, format_kv_types
from autofit.quality.quality_gate import QualityGate
from autofit.session.events import PhaseStarted
from autofit.session.finalist import Finalist
from autofit.tune.baseline import measure_baseline
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


def run_tune(exploration: Exploration, gate: QualityGate, *, seed: int) -> TuneResult:
    """Run all phases of a tune.

    Args:
        exploration: has the task, its runner, memory model and search. It is empty, unless other
            workers share the tune and this one has explored for their leader.
        gate: judges the answers of candidates.
        seed: decides the order of launches in rounds, and the search for a front.

    Raises:
        Interrupted: the user stopped the run.
        AutofitError: the run cannot continue.
    """
    task, runner, memory = exploration.task, exploration.runner, exploration.memory
    baseline = measure_baseline(task, runner)
    if exploration.baseline is None:
        exploration.begin(baseline)
    task = exploration.task
    ask_planner(exploration)
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
        is_shared=exploration.shared is not None,
        expert_costs=costs,
        notes=runner.notes,
        overhead=runner.budget.timer.overhead,
        seconds=runner.budget.spent_s,
    )


def ask_planner(exploration: Exploration) -> None:
    """Ask the runtime's planner for its estimates at the expected boundaries."""
    for candidate in exploration.expected_boundaries():
        exploration.memory.ask_planner(candidate)


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
    shared = exploration.shared
    if shared is not None:
        shared.announce(stage="search")
    exploration.search_until(share)
    if exploration.task.keeps_front:
        exploration.search_front(seed)
    if shared is not None:
        shared.announce(stage="decide")
        while exploration.take_shared() or shared.pending:
            shared.wait("the launches of other workers")


def _may_continue(exploration: Exploration, gate: QualityGate, again: SearchAgain) -> bool:
    """Exclude candidates that may not be recommended, and return whether any points are left."""
    if not again.poor_kv:
        exploration.report_best_remaining()
        return True
    exploration.exclude(gate.is_poor)
    if exploration.shared is not None:
        exploration.shared.announce(poor_kv=gate.poor)
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
