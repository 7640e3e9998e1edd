"""A tune from its first launch to its proven winner: the phases in order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from autofit.runtime.effort import measuring_effort
from autofit.runtime.launch import RUNTIME_FIT
from autofit.search.problem import Problem
from autofit.search.space import LAYOUT_AXIS
from autofit.search.study import SearchStudy
from autofit.trial.candidate import Candidate
from autofit.trial.estimate import Estimate
from autofit.trial.measurement import Measurement
from autofit.trial.metric import cost, median_metric, time_ratio
from autofit.trial.trial import Trial
from autofit.tuning.answer_check import AnswerCheck, check_answers
from autofit.tuning.budget_advice import BudgetAdvice, tune_need
from autofit.tuning.candidates import CandidateMaker
from autofit.tuning.confirm_phase import CONTENDERS, Confirmer
from autofit.tuning.confirmation import Confirmation
from autofit.tuning.default_point import default_point
from autofit.tuning.event import Incumbent, Listener, Notice, PhaseStarted
from autofit.tuning.expert_cost import ExpertCost, expert_costs
from autofit.tuning.front import END_OBJECTIVES
from autofit.tuning.frozen import FROZEN, frozen_baseline
from autofit.tuning.host_report import thread_words
from autofit.tuning.kv_score import WIDE_KV, kv_types, kv_words
from autofit.tuning.memory_record import MemoryRecord
from autofit.tuning.preference import headroom_mib
from autofit.tuning.prove import Finalist, Proof, prove, prove_or_step_back, spare_rooms
from autofit.tuning.requirement import are_kept
from autofit.tuning.result import ResultParts, result_document
from autofit.tuning.runner import TrialRunner
from autofit.tuning.search_phase import Explorer
from autofit.tuning.situation import Situation

_BASELINE_REPEATS = 3
# A device with less left is proven before rounds are spent on it: serving takes some MiB more
# than measuring, for the prompt cache. On a real card what kept 8 MiB with its context full
# died at the next prompt, and what kept 34 held.
_EDGE_MIB = 24.0
# What of the launches the search may use where the ends of a front are searched for too.
_SHARE_BEFORE_ENDS = 0.7


@dataclass(slots=True)
class Tune:
    """One tune; `run` goes through all phases and returns the result document.

    `checks_answers` is off where the answers of a model mean nothing.
    """

    situation: Situation
    runner: TrialRunner
    maker: CandidateMaker
    search: SearchStudy
    emit: Listener
    seed: int
    notes: list[str] = field(default_factory=list)
    checks_answers: bool = True
    answers: AnswerCheck | None = None
    _proofs: dict[str, Proof] = field(default_factory=dict)
    _poor_kv: set[tuple[str, str]] = field(default_factory=set)
    _best_cost: float = float("inf")
    _advice: BudgetAdvice = field(init=False)

    def __post_init__(self) -> None:
        self._advice = BudgetAdvice(self.runner.budget, self._note)

    @property
    def confirmer(self) -> Confirmer:
        """What meets candidates with the baseline."""
        return Confirmer(self.situation, self.runner, self.emit, self.seed)

    @property
    def problem(self) -> Problem:
        """What is searched."""
        return self.search.problem

    def run(self) -> dict[str, Any]:
        """Baseline, boundary, search, confirm, prove."""
        baseline = self._baseline()
        explorer = Explorer(
            self.situation,
            self.problem,
            self.search,
            self.runner,
            self._watching(baseline),
            self.maker.fill,
        )
        self._seed_search(explorer, baseline)
        for candidate in explorer.starting_candidates():
            self.maker.ask_planner(candidate)
        explorer.explore(share=_SHARE_BEFORE_ENDS if self.situation.keeps_front else 1.0)
        if self.situation.keeps_front:
            for metric in END_OBJECTIVES:
                explorer.explore_end(metric, seed=self.seed)
        finalists = self._off_the_edge(self._finalists(explorer))
        confirmation = self.confirmer.confirm(baseline, finalists)
        proof, gain = self._prove(baseline, finalists, confirmation)
        if proof is not None:
            self._look_over(proof, baseline)
        return result_document(
            ResultParts(
                situation=self.situation,
                study=self.runner.study,
                trials=self.runner.trials,
                baseline=baseline,
                confirmation=confirmation,
                proof=proof,
                gain=gain,
                boundaries=explorer.boundaries,
                search=explorer.ending,
                rest=self.runner.budget.pause.spent,
                seconds=self.runner.budget.spent_s,
                notes=self.notes,
                answers=self.answers,
                expert_costs=self._expert_costs(proof),
            )
        )

    def _expert_costs(self, proof: Proof | None) -> list[ExpertCost]:
        if proof is None:
            return []
        record = MemoryRecord(self.maker, self.runner.trials)
        winner = proof.finalist.candidate
        return expert_costs(winner, self.runner.trials, record, self.situation)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.emit(Notice(text))

    def _baseline(self) -> Trial:
        self.emit(PhaseStarted("baseline"))
        trial = self.runner.run(
            "baseline",
            self.situation.baseline,
            measuring_effort(
                self.situation.workload,
                512,
                repeats=_BASELINE_REPEATS,
                is_short=True,
                enough_s=self.runner.budget.repeat_limit_s,
            ),
            layout=RUNTIME_FIT,
            purpose="the runtime's own choice",
        )
        if not trial.is_completed:
            self._note(f"{self._own_choice} failed ({_why(trial)}), so there is no gain to tell")
        taken = thread_words(trial, self.situation.cores)
        if taken:
            self._note(taken)
        self._look_at_budget(trial)
        return trial

    def _look_at_budget(self, trial: Trial) -> None:
        """Say beforehand what a budget that is too small allows."""
        workload, most = self.situation.workload, self.runner.budget.max_launches
        self._advice.look_at(trial, lambda first: tune_need(first, workload, most))

    @property
    def _own_choice(self) -> str:
        """What the baseline is, for a sentence."""
        is_given = self.situation.baseline_params is not None
        return "the command given with --baseline" if is_given else "the runtime's own choice"

    def _watching(self, baseline: Trial) -> Listener:
        """The listener of the search, which also tells when something beats all before."""
        situation = self.situation
        reference = median_metric(baseline.measurement, situation.workload, situation.objective)

        def watch(event: object) -> None:
            self.emit(event)  # type: ignore[arg-type]
            trial = getattr(event, "trial", None)
            if isinstance(trial, Trial):
                self.maker.learn_from(trial)
                self._look_at_budget(trial)
            if not isinstance(trial, Trial) or not trial.is_completed:
                return
            value = median_metric(trial.measurement, situation.workload, situation.objective)
            if value is None or trial.phase not in {"boundary", "search"}:
                return
            worth = 1 / time_ratio(1.0, value, situation.objective)
            if worth < self._best_cost:
                self._best_cost = worth
                gain = time_ratio(reference, value, situation.objective) if reference else None
                self.emit(
                    Incumbent(trial.number, trial.candidate, situation.objective, value, gain)
                )

        self.runner.emit = watch
        return watch

    def _seed_search(self, explorer: Explorer, baseline: Trial) -> None:
        """Tell the search what the baseline showed, where its settings are a point."""
        point = default_point(self.situation, self.problem, baseline)
        if baseline.is_completed and point is not None:
            explorer.tell(point, baseline)

    def _finalists(self, explorer: Explorer) -> list[Finalist]:
        found: dict[str, Finalist] = {}
        for one in explorer.ranked():
            layout = str(one.point.get(LAYOUT_AXIS, ""))
            found.setdefault(one.candidate.key, Finalist(one.candidate, layout, one.point))
        return list(found.values())

    def _off_the_edge(self, finalists: Sequence[Finalist]) -> list[Finalist]:
        """The finalists, those that would be confirmed stepped back from the edge of memory.

        The fastest is often the one that leaves a device next to nothing: it is proven before
        rounds are spent on it, and what holds takes its place.
        """
        settled: dict[str, Finalist] = {}
        for finalist in finalists:
            if len(settled) < CONTENDERS and self._is_at_the_edge(finalist):
                proof = prove_or_step_back(finalist, self.runner, self.situation, self.problem)
                if proof is None:
                    self._note(f"a finalist does not hold at full context: {_why(self._last())}")
                    continue
                if proof.steps_back:
                    self._note(_stepped_back(proof))
                finalist = proof.finalist  # noqa: PLW2901 - it takes the other's place
                self._proofs[finalist.candidate.key] = Proof(finalist, proof.trial)
            settled.setdefault(finalist.candidate.key, finalist)
        return list(settled.values())

    def _is_at_the_edge(self, finalist: Finalist) -> bool:
        launches = [t for t in self.runner.trials if t.candidate == finalist.candidate]
        left_mib = headroom_mib(launches)
        return left_mib is not None and left_mib < _EDGE_MIB

    def _prove(
        self,
        baseline: Trial,
        finalists: Sequence[Finalist],
        confirmation: Confirmation | None,
    ) -> tuple[Proof | None, Estimate | None]:
        self.emit(PhaseStarted("prove"))
        is_best = self._is_baseline_best(baseline, finalists, confirmation)
        if is_best:
            proof = self._prove_baseline(baseline)
            if proof is not None:
                rounds = confirmation.rounds if confirmation else 0
                if not finalists:
                    self._note(self._nothing_else())
                elif confirmation and rounds:
                    self._note(self._led_words(confirmation))
                return proof, Estimate(1.0, 1.0, 1.0, rounds)
        proven = self._prove_finalists(baseline, finalists, confirmation)
        if proven is not None:
            return proven
        if is_best or not baseline.is_completed:
            return None, None
        # Whatever was faster does not hold: what runs without tuning is still an answer.
        proof = self._prove_baseline(baseline)
        if proof is None:
            return None, None
        self._note(f"nothing that is faster can be recommended, so {self._own_choice} is kept")
        return proof, Estimate(1.0, 1.0, 1.0, 0)

    def _led_words(self, confirmation: Confirmation) -> str:
        """That nothing was faster than the baseline, and how surely."""
        unsure = len(confirmation.not_told_apart)
        if not unsure:
            return f"{self._own_choice} was confirmed as the best found"
        rounds = f"{confirmation.rounds} round{'s' * (confirmation.rounds > 1)}"
        others = "1 candidate is" if unsure == 1 else f"{unsure} candidates are"
        return (
            f"{self._own_choice} did best in {rounds}, but {others} not told apart from the "
            "fastest: more rounds might tell"
        )

    def _prove_finalists(
        self,
        baseline: Trial,
        finalists: Sequence[Finalist],
        confirmation: Confirmation | None,
    ) -> tuple[Proof, Estimate | None] | None:
        """The first finalist that holds and answers well, with its gain."""
        by_id = {finalist.candidate.key: finalist for finalist in finalists}
        for key in self._order(by_id, confirmation):
            if kv_types(by_id[key].candidate) in self._poor_kv:
                continue
            proof = self._proofs.get(key) or prove_or_step_back(
                by_id[key], self.runner, self.situation, self.problem
            )
            if proof is None:
                self._note(f"a finalist does not hold at full context: {_why(self._last())}")
                continue
            if not self._answers_well(proof, baseline):
                continue
            if proof.steps_back:
                self._note(_stepped_back(proof))
                again = self.confirmer.confirm(baseline, [proof.finalist])
                return proof, _gain(again, proof.finalist.candidate.key)
            if confirmation is not None and not confirmation.has(key):
                # It was not in the rounds, and those that were cannot be recommended.
                confirmation = self.confirmer.confirm(baseline, [proof.finalist])
            return proof, _gain(confirmation, key)
        self.answers = None  # they were another's
        return None

    def _prove_baseline(self, baseline: Trial) -> Proof | None:
        """The proof of the baseline in explicit settings, None where it does not hold."""
        frozen = self._frozen(baseline)
        trial = prove(frozen, self.runner, self.situation)
        if trial.is_completed:
            return Proof(frozen, trial)
        self._note(f"{self._own_choice} does not hold at full context: {_why(trial)}")
        return None

    def _nothing_else(self) -> str:
        """Why nothing but the baseline can be recommended."""
        tried = sum(trial.phase in {"boundary", "search"} for trial in self.runner.trials)
        if tried:
            return f"nothing else ran: {tried} other launches failed"
        return "nothing else was tried: a larger --budget or --max-launches may tell more"

    def _frozen(self, baseline: Trial) -> Finalist:
        """The baseline in explicit settings; as it is where its placement cannot be told."""
        candidate = frozen_baseline(self.situation, baseline, self.maker.estimator)
        is_placed = not self.situation.devices or "n_gpu_layers" in candidate.params
        if is_placed or self.situation.baseline_params is not None:
            return Finalist(candidate, FROZEN)
        self._note(
            "this build has no llama-fit-params beside it, so what its own fit chose cannot be "
            "written out: the preset leaves the fit on"
        )
        return Finalist(baseline.candidate, RUNTIME_FIT)

    def _answers_well(self, proof: Proof, baseline: Trial) -> bool:
        """Whether a winner's answers are right; what cannot be told is no objection."""
        if not self.checks_answers:
            return True
        left_s = self.runner.budget.left_for_s("prove")
        # Winner and reference are each asked about as much as the proof was.
        if left_s is not None and left_s < 2 * proof.trial.seconds:
            self._note("no time was left to compare the winner's answers with the baseline's")
            return True
        reference = Finalist(baseline.candidate, RUNTIME_FIT)
        self.answers = check_answers(self.runner, self.situation, proof.finalist, reference)
        for words in self.answers.words:
            self._note(words)
        if self.answers.holds is False and self.answers.quality is not None:
            # Which layers lie where does not change what a KV type does to answers.
            kinds = kv_types(proof.finalist.candidate)
            self._poor_kv.add(kinds)
            self._note(
                f"no candidate with KV {kv_words(proof.finalist.candidate)} is recommended; "
                f"--kv-floor {WIDE_KV} searches without narrower types"
            )
        return self.answers.holds is not False

    def _is_baseline_best(
        self,
        baseline: Trial,
        finalists: Sequence[Finalist],
        confirmation: Confirmation | None,
    ) -> bool:
        """Whether the baseline is what to prove first."""
        if not baseline.is_completed:
            return False
        own = baseline.candidate
        if confirmation is not None and confirmation.winner is not None:
            is_fastest = confirmation.winner == own.key
        else:
            if finalists:
                self._note("the budget ended before the fastest could be confirmed")
            is_fastest = not any(self._cost(f.candidate) < self._cost(own) for f in finalists)
        if is_fastest and finalists and not self._keeps(own):
            self._note(f"{self._own_choice} is the fastest, but misses a requirement")
            return False
        return is_fastest

    def _cost(self, candidate: Candidate) -> float:
        """What a candidate cost in the middle of all its launches, infinite without any."""
        situation = self.situation
        values = [
            median_metric(measured, situation.workload, situation.objective)
            for measured in self._measurements(candidate)
        ]
        known = [cost(value, situation.objective) for value in values if value is not None]
        return median(known) if known else math.inf

    @staticmethod
    def _order(by_id: Mapping[str, Finalist], confirmation: Confirmation | None) -> list[str]:
        """Finalists in the order in which they are proven: the winner, then the rest."""
        first = [confirmation.winner, confirmation.leader] if confirmation else []
        wanted = [key for key in first if key in by_id]
        return list(dict.fromkeys([*wanted, *by_id]))  # type: ignore[list-item]

    def _keeps(self, candidate: Candidate) -> bool:
        """Whether a candidate keeps what the user requires."""
        situation = self.situation
        measured = self._measurements(candidate)
        return are_kept(situation.requirements, measured, situation.workload)

    def _measurements(self, candidate: Candidate) -> list[Measurement]:
        """What the launches of a candidate measured, proofs excepted."""
        return [
            trial.measurement
            for trial in self.runner.trials
            if trial.candidate == candidate
            and trial.is_completed
            and not trial.shows_fit_only
            and trial.phase != "prove"
            and trial.measurement is not None
        ]

    def _look_over(self, proof: Proof, baseline: Trial) -> None:
        """Note what the user should know of a winner."""
        is_frozen = proof.finalist.layout == FROZEN
        candidate = baseline.candidate if is_frozen else proof.finalist.candidate
        if self.situation.requirements and not self._keeps(candidate):
            wanted = ", ".join(str(requirement) for requirement in self.situation.requirements)
            self._note(f"the winner misses what was required ({wanted}): nothing found keeps it")
        estimate = self.maker.estimate(proof.finalist.candidate)
        for room in spare_rooms(proof, estimate, self.situation):
            self._note(room.text)

    def _last(self) -> Trial:
        return self.runner.trials[-1]


def _why(trial: Trial) -> str:
    return f"{trial.outcome.kind.replace('_', ' ')}: {trial.outcome.evidence}"


def _gain(confirmation: Confirmation | None, key: str) -> Estimate | None:
    if confirmation is None:
        return None
    try:
        standing = confirmation.standing(key)
    except KeyError:
        return None
    return standing.against_baseline.ratio if standing.against_baseline else None


def _stepped_back(proof: Proof) -> str:
    layers = "1 layer" if proof.steps_back == 1 else f"{proof.steps_back} layers"
    return f"stepped back {layers} to hold at full context"
