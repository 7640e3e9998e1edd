"""The screening of finalists before the rounds: they must fit at full context and answer well.

Rounds take most of the time of a tune. So all that can exclude a finalist is done before them: a
proof if it leaves almost no memory free on a device, and a score if its KV type is narrower than
f16. A KV type is scored only once, because the score is valid for every placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from autofit.model.sizes.kv_cache import KvTypes, kv_types
from autofit.quality.quality_gate import QualityGate
from autofit.session.budget_advice import proof_seconds
from autofit.session.events import PhaseStarted
from autofit.session.finalist import Finalist
from autofit.statistics.stopping_rule import MIN_ROUNDS
from autofit.trial.purpose import Phase
from autofit.tune.prove import Prover
from autofit.tune.race import CONTENDERS

# The launches that a score takes, and the launches of the fewest rounds that can decide between
# the baseline and one candidate.
_PROGRAM_LAUNCHES = 2
_ROUND_LAUNCHES = 2 * MIN_ROUNDS


@dataclass(frozen=True, slots=True)
class SearchAgain:
    """A request to continue the search before the rounds.

    `poor_kv` are the KV types that the search must exclude, because their answers are not good
    enough. If it is empty, the best candidate ran out of memory at full context, and the search
    already excludes it.
    """

    poor_kv: tuple[KvTypes, ...] = ()


def select_finalists(
    finalists: Sequence[Finalist], prover: Prover, gate: QualityGate
) -> list[Finalist] | SearchAgain:
    """Return the finalists that may be recommended, or a request to search again.

    The first finalists will enter the rounds. They are proven if they are tight, and their KV
    types are scored. If that excludes a KV type or the best finalist, the search continues,
    because other candidates may now be worth a launch. If no finalist is left, those that ran
    out of memory get more host layers.

    Raises:
        Interrupted: the user stopped the run.
    """
    selected: dict[str, Finalist] = {}
    is_best = True
    for finalist in finalists:
        if gate.is_poor(finalist.candidate) or finalist in prover.out_of_memory:
            continue
        if len(selected) >= CONTENDERS:
            selected.setdefault(finalist.candidate.key, finalist)
            continue
        if _fails_early_proof(finalist, prover, is_best=is_best):
            if is_best:
                return SearchAgain()
            continue  # only the best finalist is worth launches with more host layers
        is_best = False
        proven = prover.prove_if_tight(finalist)
        if proven is None:
            continue
        if _is_found_poor(proven, finalists, prover, gate, before="confirm"):
            return SearchAgain(tuple(gate.poor))
        selected.setdefault(proven.candidate.key, proven)
    return list(selected.values()) or _replace_out_of_memory(prover, gate)


def _fails_early_proof(finalist: Finalist, prover: Prover, *, is_best: bool) -> bool:
    """Return whether a tight finalist runs out of device memory at full context.

    If the search cannot continue, the best finalist is not proven here: it later gets more host
    layers instead.
    """
    if not prover.is_tight(finalist):
        return False
    if not prover.has_result(finalist):
        prover.runner.emit(PhaseStarted("prove"))
    if is_best and not _may_search(prover):
        return False
    return prover.fails_proof(finalist, is_best=is_best)


def screen_leader(
    finalists: Sequence[Finalist], prover: Prover, gate: QualityGate
) -> SearchAgain | None:
    """Score the KV type of the best candidate early, before the search spends time on a poor one.

    Raises:
        Interrupted: the user stopped the run.
    """
    roomy = [one for one in finalists if not prover.is_tight(one)]
    leader = finalists[0].candidate if finalists else None
    same = [one for one in roomy if leader and kv_types(one.candidate) == kv_types(leader)]
    if same and _is_found_poor(same[0], same, prover, gate, before="search"):
        return SearchAgain(tuple(gate.poor))
    return None


def _replace_out_of_memory(prover: Prover, gate: QualityGate) -> list[Finalist]:
    """Give finalists that ran out of memory more host layers; return the first that runs."""
    for finalist in prover.out_of_memory:
        if not gate.is_poor(finalist.candidate):
            proven = prover.prove_if_tight(finalist)
            if proven is not None:
                return [proven]
    return []


def _is_found_poor(
    finalist: Finalist,
    finalists: Sequence[Finalist],
    prover: Prover,
    gate: QualityGate,
    *,
    before: Phase,
) -> bool:
    """Score a finalist's KV types if enough time is left, and return whether they are poor."""
    evaluator = gate.evaluator
    if evaluator is None or not gate.is_open(finalist.candidate):
        return False
    # Answers of another finalist with these KV types may exist already.
    types = kv_types(finalist.candidate)
    answered = (
        one
        for one in finalists
        if kv_types(one.candidate) == types and evaluator.has_answers(one.candidate)
    )
    chosen = next(answered, None)
    if chosen is None and not _leaves_time(finalist, prover, gate, before=before):
        return False
    prover.runner.emit(PhaseStarted("prove"))
    gate.score(chosen or finalist)
    return gate.is_poor(finalist.candidate)


def _leaves_time(finalist: Finalist, prover: Prover, gate: QualityGate, *, before: Phase) -> bool:
    """Return whether the budget has time to score a KV type, and for rounds if they follow."""
    left_s = prover.runner.budget.left_for_s(before)
    needed_s = _score_s(finalist, prover, gate)
    if before == "confirm":
        needed_s += _ROUND_LAUNCHES * _usual_launch_s(prover)
    return left_s is None or left_s >= needed_s


def _may_search(prover: Prover) -> bool:
    return prover.runner.budget.allows("search", _usual_launch_s(prover))


def _usual_launch_s(prover: Prover) -> float:
    return median([trial.seconds for trial in prover.runner.trials] or [0.0])


def _score_s(finalist: Finalist, prover: Prover, gate: QualityGate) -> float:
    """Estimate the seconds that a score takes."""
    if gate.evaluator is None:
        return 0.0
    usual_s, workload = _usual_launch_s(prover), prover.task.workload
    launches = [
        trial
        for trial in prover.runner.trials
        if trial.candidate == finalist.candidate and trial.is_completed
    ]
    server_s = max([usual_s, *(proof_seconds(trial, workload) for trial in launches)])
    servers = gate.evaluator.servers_needed(finalist.candidate)
    return servers * server_s + _PROGRAM_LAUNCHES * usual_s
