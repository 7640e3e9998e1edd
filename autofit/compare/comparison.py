"""The comparison of two launch commands: rounds of fresh processes, answers and KV scores.

Each side is launched as its user would launch it. The first request of a launch is reported
separately from the second one of the same length, because page-locking, caches and growing pools
make it slower. In the first round both sides also answer the same prompts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
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
# Most comparisons are decided after this many rounds.
_USUAL_ROUNDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two sides; `model_digest` shows whether both serve the same model."""

    name: SideName
    task: Task
    runner: TrialRunner
    model_digest: str

    @property
    def candidate(self) -> Candidate:
        """The settings of the side."""
        return self.task.baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResult:
    """The ranking of the two sides and the check of their answers.

    `scoring` has the launches that only score a KV type.
    """

    ranking: Ranking
    scoring: tuple[Trial, ...]
    answers: AnswerCheck

    def trials(self, name: SideName) -> tuple[Trial, ...]:
        """Return the launches of a side, one a round."""
        return self.ranking.standing(name).trials

    def first_failure(self, name: SideName) -> Trial | None:
        """Return the first launch of a side that did not complete, or None if all did."""
        return next((trial for trial in self.trials(name) if not trial.is_completed), None)


@dataclass(slots=True, kw_only=True)
class Comparison:
    """A comparison of two sides; `run` launches its rounds.

    Both sides get requests that fit into `slot_context`, the smaller context of a request. `note`
    is called with each message for the user. Fewer than three `rounds` decide nothing. A
    difference below the share `min_effect` is a tie.
    """

    sides: tuple[Side, Side]
    workload: Workload
    slot_context: int
    metric: Metric
    note: Callable[[str], None] = lambda _: None
    rounds: int = 12
    min_effect: float = 0.03
    seed: int = 1
    _answers: dict[SideName, Answers | None] = field(default_factory=dict)
    _seconds: list[float] = field(default_factory=list)

    def run(self) -> ComparisonResult:
        """Launch both sides in turns until their order is known or the budget ends.

        Raises:
            Interrupted: the user stopped the run.
        """
        prompts = PromptSet(
            self.workload,
            self.slot_context,
            has_retrieval=self._has_same_model and self._has_other_kv,
        )
        ranking = run_rounds(
            [self._contender(side, prompts) for side in self.sides],
            workload=self.workload,
            metric=self.metric,
            rng=random.Random(self.seed),
            rule=self._plan_rounds,
            must_run=SIDES,
            has_time=self._has_time,
            emit=self.sides[0].runner.emit,
        )
        answers = self._judge_answers()
        trials = (trial for side in self.sides for trial in side.runner.trials)
        return ComparisonResult(
            ranking=ranking,
            scoring=tuple(trial for trial in trials if trial.phase == "prove"),
            answers=answers,
        )

    def request_plan(self) -> RequestPlan:
        """Return the longest request as a measured warm-up, then all requests by length."""
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
    def _has_same_model(self) -> bool:
        a, b = self.sides
        return a.model_digest == b.model_digest

    @property
    def _has_other_kv(self) -> bool:
        a, b = self.sides
        return kv_types(a.candidate) != kv_types(b.candidate)

    def _contender(self, side: Side, prompts: PromptSet) -> Contender:
        # Another model may have other tokens, so each side then has its own prompts.
        own_prompts = prompts if self._has_same_model else replace(prompts)

        def launch(number: int) -> Trial:
            launched = round_purpose(number, side.name), side.candidate, self.request_plan()
            asked = own_prompts if number == 1 else None
            trial, answers = collect_answers(side.runner, asked, *launched, is_verbatim=True)
            self._answers.setdefault(side.name, answers)
            self._seconds.append(trial.seconds)
            return trial

        return Contender(side.name, launch)

    def _plan_rounds(self, first_round: Sequence[Trial]) -> StoppingRule:
        """Return the rounds that the budget has room for, planned before speeds are known.

        The rule divides its probability of error over all its rounds. With more rounds than there
        is time for, intervals would be needlessly wide.
        """
        budget = self.sides[0].runner.budget
        if all(trial.is_completed for trial in first_round):
            self._warn_of_shortage()
        most, left_s = self.rounds, budget.left_for_s("confirm")
        if left_s is not None:
            most = min(most, 1 + int(left_s / max(0.1, sum(self._seconds))))
        return StoppingRule(
            max_rounds=max(MIN_ROUNDS, most),
            min_effect=self.min_effect,
            ended_at=self.rounds if self.rounds < MIN_ROUNDS else None,
        )

    def _warn_of_shortage(self) -> None:
        """Warn if the budget is too small to decide which side is faster."""
        launch_s = sum(self._seconds) / len(self._seconds)
        least, usual = (
            len(self.sides) * min(self.rounds, rounds) for rounds in (MIN_ROUNDS, _USUAL_ROUNDS)
        )
        purpose = "to decide which is faster" if self.rounds >= MIN_ROUNDS else "to measure both"
        need = launches_need(launch_s, least, usual, purpose)
        message = shortage(self.sides[0].runner.budget, launch_s, need)
        if message:
            self.note(message)

    def _has_time(self, _names: Sequence[str]) -> bool:
        """Return whether there is time for a launch; the first round is always launched."""
        if len(self._seconds) < len(self.sides):
            return True
        mean_s = sum(self._seconds) / len(self._seconds)
        return self.sides[0].runner.budget.allows("confirm", mean_s)

    def _judge_answers(self) -> AnswerCheck:
        """Judge the answers of both sides. If their KV types differ, score these, too."""
        if not self._has_same_model:
            message = "answers not compared: A and B serve different models"
            return AnswerCheck("unknown", "A", None, None, (message,))
        reference, other = self.sides
        by_program, kv = None, ""
        if self._has_other_kv:
            if narrowest_kv_bytes(other.candidate) > narrowest_kv_bytes(reference.candidate):
                reference, other = other, reference
            kv = f" ({format_kv_types(kv_types(reference.candidate))} KV)"
            if self._answers[reference.name] is not None and self._answers[other.name] is not None:
                by_program = self._score_kv_types(other, reference.candidate)
        return judge_answers(
            *(self._answers[reference.name], self._answers[other.name]),
            reference_name=f"{reference.name}{kv}",
            may_differ=self._has_other_kv,
            is_sparse=reference.task.inventory.is_moe,
            by_program=by_program,
        )

    def _score_kv_types(self, side: Side, wide: Candidate) -> ProgramScore:
        """Score a side's KV types against another candidate's with the side's own program."""
        wide_types = dict(zip(KV_TYPE_PARAMS, kv_types(wide), strict=True))
        return score_kv_types(
            side.runner,
            side.task,
            Finalist(side.candidate, "", is_verbatim=True),
            side.candidate.with_params(**wide_types),
            launch_s=sum(self._seconds) / len(self._seconds),
        )
