"""The prove phase: the fastest candidate that runs at full context with acceptable answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from autofit.memory.exchange_rates import unused_rooms
from autofit.model.sizes.kv_cache import format_kv_types, kv_types
from autofit.quality.answer_check import AnswerCheck
from autofit.quality.quality_gate import QualityGate
from autofit.runtime.planner.planner import RuntimePlanner
from autofit.search.space import HOST_LAYERS_AXIS
from autofit.session.finalist import Finalist, Proof
from autofit.session.ranking import Ranking
from autofit.session.requirement import are_kept
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.statistics.estimate import Estimate
from autofit.text_format import as_fast
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement
from autofit.trial.metric import cost, median_metric
from autofit.trial.outcome import describe_outcome
from autofit.trial.trial import Trial
from autofit.tune.baseline import describe_baseline, explicit_baseline
from autofit.tune.explore import Exploration
from autofit.tune.prove import Prover, describe_steps_back, launch_proof
from autofit.tune.race import race


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommendation of a tune: a proven candidate.

    `gain` is its speedup over the baseline, or None if unknown. `answers` is the check of its
    answers against the reference, or None without a check.
    """

    proof: Proof
    gain: Estimate | None
    answers: AnswerCheck | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommender:
    """A recommender, which proves the candidates of a tune, the fastest first."""

    task: Task
    runner: TrialRunner
    planner: RuntimePlanner | None
    prover: Prover
    gate: QualityGate
    seed: int

    def recommend(
        self, baseline: Trial, finalists: Sequence[Finalist], ranking: Ranking | None
    ) -> Recommendation | None:
        """Prove candidates until one can be recommended; return None if none can.

        Raises:
            Interrupted: the user stopped the run.
        """
        is_best = self._is_baseline_best(baseline, finalists, ranking)
        if is_best:
            proof = self._prove_baseline(baseline)
            if proof is not None:
                rounds = ranking.rounds if ranking else 0
                if not finalists:
                    self.runner.note(self._nothing_else())
                elif ranking and rounds:
                    self.runner.note(self._baseline_led(ranking))
                self._note_poor_kv(baseline)
                return Recommendation(proof, Estimate(1.0, 1.0, 1.0, rounds))
        proven = self._prove_finalists(baseline, finalists, ranking)
        if proven is not None or is_best or not baseline.is_completed:
            return proven
        # No faster candidate can be proven, but the baseline is still a result.
        proof = self._prove_baseline(baseline)
        if proof is None:
            return None
        self.runner.note(
            f"no faster candidate can be recommended, so {self._baseline_name} is kept"
        )
        self._note_poor_kv(baseline)
        return Recommendation(proof, Estimate(1.0, 1.0, 1.0, 0))

    def _prove_baseline(self, baseline: Trial) -> Proof | None:
        """Prove the baseline with explicit settings, or return None if it fails."""
        finalist = explicit_baseline(self.task, self.runner, baseline, self.planner)
        trial = launch_proof(finalist, self.task, self.runner)
        if trial.is_completed:
            return Proof(finalist, trial)
        reason = describe_outcome(trial.outcome)
        self.runner.note(f"{self._baseline_name} does not run at full context: {reason}")
        return None

    def _prove_finalists(
        self, baseline: Trial, finalists: Sequence[Finalist], ranking: Ranking | None
    ) -> Recommendation | None:
        """Return the first finalist that can be proven and has acceptable answers."""
        by_id = {finalist.candidate.key: finalist for finalist in finalists}
        for key in _proof_order(by_id, ranking):
            if self.gate.is_poor(by_id[key].candidate):
                continue
            proof = self.prover.prove(by_id[key])
            if proof is None:
                continue
            answers = self.gate.check_winner(proof)
            if answers is not None and answers.is_acceptable is False:
                self._note_answers(baseline, proof)
                continue
            if proof.steps_back:
                self.runner.note(describe_steps_back(proof))
                again = self._race_alone(baseline, proof)
                gain = _gain(again, proof.finalist.candidate.key)
                return Recommendation(proof, gain, answers)
            if ranking is not None and not ranking.has(key):
                # Nothing in the rounds can be recommended, and this finalist was not in them.
                ranking = self._race_alone(baseline, proof)
            gain = _gain(ranking, key) if ranking else self._single_launch_gain(baseline, proof)
            return Recommendation(proof, gain, answers)
        return None

    def _note_answers(self, baseline: Trial, proof: Proof) -> None:
        """Note the speed of a candidate that is left out for its answers."""
        gain = self._single_launch_gain(baseline, proof)
        speed = f", although {as_fast(gain.median, other=self._baseline_name)}" if gain else ""
        self.runner.note(
            f"the settings of #{proof.trial.number} are left out for their answers{speed}; for a "
            "model of random weights, compare no answers (--no-answers)"
        )

    def _single_launch_gain(self, baseline: Trial, proof: Proof) -> Estimate | None:
        """Return the speedup without an interval, from launches that were not in rounds."""
        task, trials = self.task, self.runner.trials
        own = usual_cost(proof.finalist.candidate, task, trials)
        before = usual_cost(baseline.candidate, task, trials)
        return (
            Estimate(before / own, None, None, 0) if own < math.inf and before < math.inf else None
        )

    def _race_alone(self, baseline: Trial, proof: Proof) -> Ranking | None:
        return race(self.task, self.runner, baseline, [proof.finalist], seed=self.seed)

    def _is_baseline_best(
        self, baseline: Trial, finalists: Sequence[Finalist], ranking: Ranking | None
    ) -> bool:
        """Return whether the baseline must be proven first."""
        if not baseline.is_completed:
            return False
        task, trials = self.task, self.runner.trials
        own = baseline.candidate
        if ranking is not None and ranking.winner is not None:
            is_fastest = ranking.winner == own.key
        else:
            if finalists:
                self.runner.note("the budget ended before any candidate was confirmed in rounds")
            own_cost = usual_cost(own, task, trials)
            is_fastest = not any(
                usual_cost(finalist.candidate, task, trials) < own_cost for finalist in finalists
            )
        if is_fastest and finalists and not keeps_requirements(own, task, trials):
            self.runner.note(f"{self._baseline_name} is the fastest, but misses a requirement")
            return False
        return is_fastest

    @property
    def _baseline_name(self) -> str:
        return describe_baseline(self.task)

    def _baseline_led(self, ranking: Ranking) -> str:
        """Return the note that no candidate was faster than the baseline, and its certainty."""
        undecided = len(ranking.undecided)
        if not undecided:
            return f"{self._baseline_name} was confirmed as the best found"
        rounds = f"{ranking.rounds} round{'s' * (ranking.rounds > 1)}"
        others = "1 candidate" if undecided == 1 else f"{undecided} candidates"
        return (
            f"{self._baseline_name} was fastest in {rounds}, but {others} may be as fast: more "
            "rounds would decide"
        )

    def _nothing_else(self) -> str:
        """Return the reason why only the baseline can be recommended."""
        tried = [t for t in self.runner.trials if t.phase in {"boundary", "search"}]
        if any(trial.is_completed for trial in tried):
            return "no other candidate that ran can be recommended"
        if tried:
            return f"no other candidate ran: {len(tried)} launches failed"
        return "no other candidate was tried: use a larger --budget or --max-launches"

    def _note_poor_kv(self, baseline: Trial) -> None:
        """Note that the baseline has KV types with answers too poor for other candidates."""
        if self.gate.is_poor(baseline.candidate):
            types = format_kv_types(kv_types(baseline.candidate))
            self.runner.note(
                f"{self._baseline_name} also has KV {types}: it is kept because it runs today, "
                "not for its answers"
            )


def add_warnings(recommendation: Recommendation, exploration: Exploration) -> None:
    """Note what the user should know about the winner."""
    for text in _find_warnings(recommendation.proof, exploration):
        exploration.runner.note(text)


def _find_warnings(proof: Proof, exploration: Exploration) -> Iterator[str]:
    """Yield a missed requirement, and devices with unused memory."""
    task, finalist = exploration.task, proof.finalist
    measured_as = finalist.candidate
    if finalist.is_baseline and exploration.baseline is not None:
        measured_as = exploration.baseline.candidate
    trials = exploration.runner.trials
    if task.requirements and not keeps_requirements(measured_as, task, trials):
        required = ", ".join(str(requirement) for requirement in task.requirements)
        yield f"the winner misses a requirement ({required}), as do all candidates that ran"
    if _is_at_boundary(finalist, exploration):
        return  # a launch has shown that another layer does not fit into the free memory
    predicted = exploration.memory.predict(finalist.candidate)
    if predicted is not None:
        for room in unused_rooms(task.inventory, predicted, _free_mib(proof, task)):
            yield room.text


def _free_mib(proof: Proof, task: Task) -> dict[str, float]:
    """Map each device to the memory that the proof left free, within the user's limits."""
    measured = proof.trial.measurement
    if measured is None:
        return {}
    found = {}
    for name, free_mib in measured.free_mib.items():
        peak_mib, limit_mib = measured.peak_mib.get(name), task.limits_mib.get(name)
        if free_mib is not None:
            found[name] = free_mib
            if peak_mib is not None and limit_mib is not None:
                found[name] = min(free_mib, limit_mib - peak_mib)
    return found


def _is_at_boundary(finalist: Finalist, exploration: Exploration) -> bool:
    """Return whether a failure shows that one host layer less does not fit."""
    point = finalist.point
    if point is None or HOST_LAYERS_AXIS not in point:
        return False
    fewer = {**point, HOST_LAYERS_AXIS: int(point[HOST_LAYERS_AXIS]) - 1}
    return exploration.search.is_ruled_out(fewer)


def usual_cost(candidate: Candidate, task: Task, trials: Sequence[Trial]) -> float:
    """Return the median cost of a candidate's launches, or infinity without a launch."""
    values = [
        median_metric(measured, task.workload, task.objective)
        for measured in _measurements(candidate, trials)
    ]
    known = [cost(value, task.objective) for value in values if value is not None]
    return median(known) if known else math.inf


def keeps_requirements(candidate: Candidate, task: Task, trials: Sequence[Trial]) -> bool:
    """Return whether a candidate satisfies the requirements in the median of its launches."""
    return are_kept(task.requirements, _measurements(candidate, trials), task.workload)


def _measurements(candidate: Candidate, trials: Sequence[Trial]) -> list[Measurement]:
    """Return the measurements of a candidate's launches, without proofs."""
    return [
        trial.measurement
        for trial in trials
        if trial.candidate == candidate
        and trial.is_completed
        and not trial.shows_fit_only
        and trial.phase != "prove"
        and trial.measurement is not None
    ]


def _proof_order(by_id: Mapping[str, Finalist], ranking: Ranking | None) -> list[str]:
    """Return the finalists' ids in order of proof: winner, leader, then the others."""
    first = [ranking.winner, ranking.leader] if ranking else []
    return list(dict.fromkeys([*(key for key in first if key in by_id), *by_id]))  # type: ignore[list-item]


def _gain(ranking: Ranking | None, key: str) -> Estimate | None:
    if ranking is None or not ranking.has(key):
        return None
    against = ranking.standing(key).against_baseline
    return against.ratio if against else None
