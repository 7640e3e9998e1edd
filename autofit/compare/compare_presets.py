"""Two launch commands against each other: rounds of fresh processes until a rule decides.

Both are started as they were given, so each with what its user switched on. The first request
of a launch is told apart from the second one like it: page-locking, caches and pools that
grow make it slower. In the first round both are also asked for their answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from autofit.model.sizes.kv_cache import format_kv_types, kv_types
from autofit.quality.answer_check import (
    AnswerCheck,
    ProgramScore,
    judge_answers,
    narrowest_kv_bytes,
)
from autofit.quality.output_evaluator import score_kv_types
from autofit.quality.prompt_set import Answers, PromptSet, collect_answers
from autofit.runtime.server.request_plan import PlannedRequest, RequestPlan
from autofit.session.budget_advice import launches_need, shortage
from autofit.session.finalist import Finalist
from autofit.session.ranking import Ranking
from autofit.session.rounds import Contender, round_purpose, run_rounds
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.statistics.stopping_rule import MIN_ROUNDS, StoppingRule
from autofit.trial.candidate import Candidate
from autofit.trial.metric import Metric
from autofit.trial.parameter_groups import KV_TYPE_PARAMS
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

SideName = Literal["A", "B"]
SIDES: tuple[SideName, SideName] = ("A", "B")
_REPEATS = 2
# Most comparisons are decided by then.
_SENSIBLE_ROUNDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two: what is launched, and what launches it.

    `model_digest` tells whether both serve the same model.
    """

    name: SideName
    task: Task
    runner: TrialRunner
    model_digest: str

    @property
    def candidate(self) -> Candidate:
        """What is launched."""
        return self.task.baseline

    def score_kv_types(self, wide: Candidate) -> ProgramScore:
        """What its KV types cost against those of another candidate, by its runtime's program."""
        names = dict(zip(KV_TYPE_PARAMS, kv_types(wide), strict=True))
        made = [trial.seconds for trial in self.runner.trials]
        return score_kv_types(
            self.runner,
            self.task,
            Finalist(self.candidate, "", is_verbatim=True),
            self.candidate.with_params(**names),
            launch_s=sum(made) / max(1, len(made)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResult:
    """What came of it; the confirmation is None where the first round failed.

    There could be `max_rounds`. `scoring` are launches that only tell what a KV type costs.
    """

    trials: dict[SideName, tuple[Trial, ...]]
    scoring: tuple[Trial, ...]
    confirmation: Ranking | None
    answers: AnswerCheck
    max_rounds: int

    def failed(self, name: SideName) -> Trial | None:
        """The first launch of a side that did not complete."""
        return next((trial for trial in self.trials[name] if not trial.is_completed), None)


@dataclass(slots=True, kw_only=True)
class Comparison:
    """A comparison of two sides; `run` goes through its rounds.

    `slot_context` is the smaller one of the two, so that both are asked the same. `rounds`
    are the most there will be; fewer than three decide nothing. `note` is told what the user
    should know.
    """

    sides: tuple[Side, Side]
    workload: Workload
    slot_context: int
    metric: Metric
    note: Callable[[str], None] = lambda _: None
    rounds: int = 12
    min_effect: float = 0.03
    seed: int = 1
    _trials: dict[SideName, list[Trial]] = field(default_factory=dict)

    def run(self) -> ComparisonResult:
        """Launch both in turns until their order is known or the budget ends.

        Raises:
            Interrupted: the user stopped the run.
        """
        self._trials = {side.name: [] for side in self.sides}
        rng = random.Random(self.seed)
        said = self._first_round(rng)
        confirmation, max_rounds = None, self.rounds
        made = [trial for trials in self._trials.values() for trial in trials]
        if all(trial.is_completed for trial in made):
            rule = self._rule(made)
            max_rounds = rule.last_round
            confirmation = self._further_rounds(rng, rule, made)
        check = self._judged(said)
        return ComparisonResult(
            trials={name: tuple(trials) for name, trials in self._trials.items()},
            scoring=tuple(
                trial
                for side in self.sides
                for trial in side.runner.trials
                if trial.phase == "prove"
            ),
            confirmation=confirmation,
            answers=check,
            max_rounds=max_rounds,
        )

    def request_plan(self) -> RequestPlan:
        """The longest request first, as a warm-up that is kept; then all, it leading."""
        order = sorted(
            range(len(self.workload.requests)),
            key=lambda index: -self.workload.requests[index].prompt_tokens,
        )
        planned = [
            PlannedRequest(
                self.workload.requests[index].prompt_tokens,
                self.workload.requests[index].predicted_tokens,
                index,
            )
            for index in order
        ]
        first = replace(planned[0], is_warmup=True)
        return RequestPlan("full", (first, *planned * _REPEATS)).within(self.slot_context)

    @property
    def _is_same_model(self) -> bool:
        a, b = self.sides
        return a.model_digest == b.model_digest

    @property
    def _has_other_kv(self) -> bool:
        a, b = self.sides
        return kv_types(a.candidate) != kv_types(b.candidate)

    def _first_round(self, rng: random.Random) -> dict[SideName, Answers | None]:
        """Launch both and ask them, too; what each said."""
        has_retrieval = self._is_same_model and self._has_other_kv
        interview = PromptSet(self.workload, self.slot_context, has_retrieval=has_retrieval)
        said: dict[SideName, Answers | None] = {}
        for side in rng.sample(self.sides, len(self.sides)):
            # Other models may have other tokens: there each is asked in its own.
            asked = interview if self._is_same_model else replace(interview)
            trial, said[side.name] = collect_answers(
                *(side.runner, asked, round_purpose(1, side.name), side.candidate),
                self.request_plan(),
                is_verbatim=True,
            )
            self._trials[side.name].append(trial)
        return said

    def _judged(self, said: dict[SideName, Answers | None]) -> AnswerCheck:
        """The answers of both against each other; KV types are scored with the time left."""
        if not self._is_same_model:
            words = "A and B serve different models: their answers are not judged"
            return AnswerCheck("unknown", "A", None, None, (words,))
        reference, other = self.sides
        by_program, kv = None, ""
        if self._has_other_kv:
            if narrowest_kv_bytes(other.candidate) > narrowest_kv_bytes(reference.candidate):
                reference, other = other, reference
            kv = f" ({format_kv_types(kv_types(reference.candidate))} KV)"
            if said[reference.name] is not None and said[other.name] is not None:
                by_program = other.score_kv_types(reference.candidate)
        return judge_answers(
            *(said[reference.name], said[other.name]),
            reference_name=f"{reference.name}{kv}",
            may_differ=self._has_other_kv,
            is_sparse=reference.task.inventory.is_moe,
            by_program=by_program,
        )

    def _further_rounds(
        self, rng: random.Random, rule: StoppingRule, made: list[Trial]
    ) -> Ranking:
        self._look_at_budget(made)
        return run_rounds(
            [self._contender(side) for side in self.sides],
            workload=self.workload,
            metric=self.metric,
            rng=rng,
            rule=rule,
            budget_left=self._may_launch,
            made=made,
            emit=self.sides[0].runner.emit,
        )

    def _look_at_budget(self, made: list[Trial]) -> None:
        """Say beforehand when a budget is too small for what tells A and B apart."""
        launch_s = sum(trial.seconds for trial in made) / len(made)
        least, sensible = (
            len(self.sides) * min(self.rounds, rounds) for rounds in (MIN_ROUNDS, _SENSIBLE_ROUNDS)
        )
        purpose = "telling which is faster" if self.rounds >= MIN_ROUNDS else "measuring both"
        need = launches_need(launch_s, least, sensible, purpose)
        words = shortage(self.sides[0].runner.budget, launch_s, need)
        if words:
            self.note(words)

    def _contender(self, side: Side) -> Contender:
        def launch(number: int) -> Trial:
            trial = side.runner.run(
                round_purpose(number, side.name),
                side.candidate,
                self.request_plan(),
                is_verbatim=True,
            )
            self._trials[side.name].append(trial)
            return trial

        return Contender(side.name, launch)

    def _rule(self, first_round: list[Trial]) -> StoppingRule:
        """Rounds as wanted that the budget has room for, fixed before speeds are looked at.

        The rule spends its chance of error over all its rounds: cut off before their end it
        would give needlessly wide intervals.
        """
        round_s = sum(trial.seconds for trial in first_round)
        left_s = self.sides[0].runner.budget.left_for_s("confirm")
        most = self.rounds
        if left_s is not None:
            most = min(most, 1 + int(left_s / max(0.1, round_s)))
        return StoppingRule(
            max_rounds=max(MIN_ROUNDS, most),
            min_effect=self.min_effect,
            ended_at=self.rounds if self.rounds < MIN_ROUNDS else None,
        )

    def _may_launch(self) -> bool:
        trials = [trial for side in self._trials.values() for trial in side]
        mean_s = sum(trial.seconds for trial in trials) / len(trials)
        return self.sides[0].runner.budget.allows("confirm", mean_s)
