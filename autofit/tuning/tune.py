"""A tune from its first launch to its proven winner: the phases in order."""

from __future__ import annotations

import math
import random
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
from autofit.trial.sequential import FIRST_LOOK, Rule
from autofit.trial.trial import Trial
from autofit.tuning.answer_check import AnswerCheck, check_answers
from autofit.tuning.candidates import CandidateMaker
from autofit.tuning.confirm import Contender, confirm, round_purpose
from autofit.tuning.confirmation import Confirmation
from autofit.tuning.default_point import default_point
from autofit.tuning.event import Incumbent, Listener, Notice, PhaseStarted
from autofit.tuning.frozen import FROZEN, frozen_baseline
from autofit.tuning.prove import Finalist, Proof, prove, prove_or_step_back, spare_rooms
from autofit.tuning.requirement import are_kept
from autofit.tuning.result import ResultParts, result_document
from autofit.tuning.runner import TrialRunner
from autofit.tuning.search_phase import Explorer
from autofit.tuning.situation import Situation

_BASELINE_REPEATS = 3
_CONFIRM_REPEATS = 2
# Contenders of the confirmation beside the baseline: the incumbent and the runner-up, for
# with noise the second best seen is often the best.
_CONTENDERS = 2
# With time for fewer rounds than this, only the incumbent meets the baseline.
_ROUNDS_FOR_SEVERAL = 5
# Fewer than three rounds say nothing, so they may take a little more than their share.
_OVERTIME = 1.15


@dataclass(slots=True)
class Tune:
    """One tune; `run` goes through all phases and returns the result document."""

    situation: Situation
    runner: TrialRunner
    maker: CandidateMaker
    search: SearchStudy
    emit: Listener
    seed: int
    notes: list[str] = field(default_factory=list)
    answers: AnswerCheck | None = None
    _best_cost: float = float("inf")

    @property
    def problem(self) -> Problem:
        """What is searched."""
        return self.search.problem

    def run(self) -> dict[str, Any]:
        """Baseline, boundary, search, confirm, prove."""
        baseline = self._baseline()
        explorer = Explorer(
            self.situation, self.problem, self.search, self.runner, self._watching(baseline)
        )
        self._seed_search(explorer, baseline)
        for candidate in explorer.starting_candidates():
            self.maker.ask_planner(candidate)
        explorer.explore()
        finalists = self._finalists(explorer)
        confirmation = self._confirm(baseline, finalists)
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
                seconds=self.runner.budget.spent_s,
                notes=self.notes,
                answers=self.answers,
            )
        )

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
        return trial

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

    def _confirm(self, baseline: Trial, finalists: Sequence[Finalist]) -> Confirmation | None:
        contenders = []
        if baseline.is_completed:
            contenders.append(self._contender(Finalist(baseline.candidate, RUNTIME_FIT)))
        chosen = list(finalists[:_CONTENDERS])
        rule = self._rule(baseline, chosen)
        if rule.max_rounds < _ROUNDS_FOR_SEVERAL and len(chosen) > 1:
            chosen = chosen[:1]
            rule = self._rule(baseline, chosen)
        contenders += [self._contender(finalist) for finalist in chosen]
        if not contenders:
            return None
        self.emit(PhaseStarted("confirm"))
        return confirm(
            contenders,
            workload=self.situation.workload,
            metric=self.situation.objective,
            rng=random.Random(self.seed),
            rule=rule,
            has_baseline=baseline.is_completed,
            budget_left=self._may_confirm,
        )

    def _rule(self, baseline: Trial, finalists: Sequence[Finalist]) -> Rule:
        """As many rounds as the budget affords, fixed before the first.

        The rule spends its chance of error over all its rounds: one made for twelve rounds
        that is cut off after five would give needlessly wide intervals.
        """
        keys = {finalist.candidate.key for finalist in finalists}
        seconds: dict[str, float] = {}
        for trial in self.runner.trials:
            if trial.candidate.key in keys or trial is baseline:
                seconds[trial.candidate.key] = trial.seconds
        left_s = self.runner.budget.left_for_s("confirm")
        most = Rule().max_rounds
        if left_s is not None:
            most = min(most, int(left_s / max(0.1, sum(seconds.values()))))
        return Rule(max_rounds=max(FIRST_LOOK, most), min_effect=self.situation.min_effect)

    def _may_confirm(self) -> bool:
        budget = self.runner.budget
        confirmed = sum(trial.phase == "confirm" for trial in self.runner.trials)
        if confirmed < FIRST_LOOK * 2 and budget.total_s is not None:
            return budget.spent_s < budget.total_s * _OVERTIME
        trials = [trial.seconds for trial in self.runner.trials]
        return budget.allows("confirm", sum(trials) / max(1, len(trials)))

    def _contender(self, finalist: Finalist) -> Contender:
        ubatch = finalist.candidate.get_int("ubatch", 512)

        def launch(number: int) -> Trial:
            return self.runner.run(
                "confirm",
                finalist.candidate,
                measuring_effort(
                    self.situation.workload,
                    ubatch,
                    repeats=_CONFIRM_REPEATS,
                    enough_s=self.runner.budget.repeat_limit_s,
                ),
                layout=finalist.layout,
                purpose=round_purpose(number),
            )

        return Contender(finalist.candidate.key, launch)

    def _prove(
        self,
        baseline: Trial,
        finalists: Sequence[Finalist],
        confirmation: Confirmation | None,
    ) -> tuple[Proof | None, Estimate | None]:
        self.emit(PhaseStarted("prove"))
        if self._is_baseline_best(baseline, finalists, confirmation):
            frozen = self._frozen(baseline)
            trial = prove(frozen, self.runner, self.situation)
            if trial.is_completed:
                rounds = confirmation.rounds if confirmation else 0
                if not finalists:
                    self._note(self._nothing_else())
                elif rounds:
                    self._note(f"{self._own_choice} was confirmed as the best found")
                return Proof(frozen, trial), Estimate(1.0, 1.0, 1.0, rounds)
            self._note(f"{self._own_choice} does not hold at full context: {_why(trial)}")
        by_id = {finalist.candidate.key: finalist for finalist in finalists}
        for key in self._order(by_id, confirmation):
            proof = prove_or_step_back(by_id[key], self.runner, self.situation, self.problem)
            if proof is None:
                self._note(f"a finalist does not hold at full context: {_why(self._last())}")
                continue
            if not self._answers_well(proof.finalist, baseline):
                continue
            if proof.steps_back:
                self._note(f"stepped back {proof.steps_back} layers to hold at full context")
                return proof, self._measured_again(baseline, proof)
            return proof, _gain(confirmation, key)
        return None, None

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

    def _answers_well(self, finalist: Finalist, baseline: Trial) -> bool:
        """Whether a finalist's answers are right; what cannot be told is no objection."""
        reference = Finalist(baseline.candidate, RUNTIME_FIT)
        self.answers = check_answers(self.runner, self.situation, finalist, reference)
        for words in self.answers.words:
            self._note(words)
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

    def _measured_again(self, baseline: Trial, proof: Proof) -> Estimate | None:
        """The gain of a finalist that changed since it was confirmed."""
        if not baseline.is_completed:
            return None
        again = confirm(
            [
                self._contender(Finalist(baseline.candidate, RUNTIME_FIT)),
                self._contender(proof.finalist),
            ],
            workload=self.situation.workload,
            metric=self.situation.objective,
            rng=random.Random(self.seed),
            rule=Rule(min_effect=self.situation.min_effect),
            budget_left=self._may_confirm,
        )
        return _gain(again, proof.finalist.candidate.key)


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
