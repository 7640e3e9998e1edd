"""The confirmation of a tune: its finalists against the baseline, as the budget affords."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from autofit.runtime.server.request_plan import plan_measurement
from autofit.session.events import Listener, PhaseStarted
from autofit.session.finalist import RUNTIME_FIT, Finalist
from autofit.session.ranking import Ranking
from autofit.session.rounds import Contender, round_purpose, run_rounds
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.statistics.stopping_rule import MIN_ROUNDS, StoppingRule
from autofit.trial.trial import Trial

# Contenders beside the baseline: the incumbent and the runner-up, for with noise the second
# best seen is often the best.
CONTENDERS = 2
_REPEATS = 2
# With time for fewer rounds than this, only the incumbent meets the baseline.
_ROUNDS_FOR_SEVERAL = 5
# Fewer than three rounds say nothing, so they may take a little more than their share.
_OVERTIME = 1.15


@dataclass(frozen=True, slots=True)
class Confirmer:
    """Confirms candidates of a task."""

    task: Task
    runner: TrialRunner
    emit: Listener
    seed: int

    def confirm(self, baseline: Trial, finalists: Sequence[Finalist]) -> Ranking | None:
        """The first finalists and the baseline in rounds; None without a finalist."""
        chosen = list(finalists[:CONTENDERS])
        if not chosen:
            return None
        rule = self._rule(baseline, chosen)
        if rule.max_rounds < _ROUNDS_FOR_SEVERAL and len(chosen) > 1:
            chosen = chosen[:1]
            rule = self._rule(baseline, chosen)
        own = Finalist(baseline.candidate, RUNTIME_FIT, is_verbatim=True, is_baseline=True)
        contenders = [
            self._contender(finalist) for finalist in (*[own] * baseline.is_completed, *chosen)
        ]
        self.emit(PhaseStarted("confirm"))
        return run_rounds(
            contenders,
            workload=self.task.workload,
            metric=self.task.objective,
            rng=random.Random(self.seed),
            rule=rule,
            has_baseline=baseline.is_completed,
            budget_left=self._has_time,
            emit=self.emit,
        )

    def _rule(self, baseline: Trial, finalists: Sequence[Finalist]) -> StoppingRule:
        """As many rounds as the budget affords, fixed before the first.

        The rule spends its chance of error over all its rounds: one made for twelve rounds
        that is cut off after five would give needlessly wide intervals.
        """
        keys = {finalist.candidate.key for finalist in finalists}
        seconds: dict[str, float] = {}
        for trial in self.runner.trials:
            if trial is baseline or (trial.candidate.key in keys and trial.phase != "prove"):
                seconds[trial.candidate.key] = trial.seconds
        left_s = self.runner.budget.left_for_s("confirm")
        most = StoppingRule().max_rounds
        if left_s is not None:
            most = min(most, int(left_s / max(0.1, sum(seconds.values()))))
        return StoppingRule(max_rounds=max(MIN_ROUNDS, most), min_effect=self.task.min_effect)

    def _has_time(self) -> bool:
        budget = self.runner.budget
        confirmed = sum(trial.phase == "confirm" for trial in self.runner.trials)
        if confirmed < MIN_ROUNDS * 2 and budget.total_s is not None:
            return budget.spent_s < budget.total_s * _OVERTIME
        trials = [trial.seconds for trial in self.runner.trials]
        return budget.allows("confirm", sum(trials) / max(1, len(trials)))

    def _contender(self, finalist: Finalist) -> Contender:
        ubatch = finalist.candidate.get_int("ubatch", 512)

        def launch(number: int) -> Trial:
            return self.runner.run(
                round_purpose(number),
                finalist.candidate,
                plan_measurement(
                    self.task.workload,
                    ubatch,
                    repeats=_REPEATS,
                    enough_s=self.runner.budget.repeat_limit_s,
                ),
                layout=finalist.layout,
                is_verbatim=finalist.is_verbatim,
            )

        return Contender(finalist.candidate.key, launch)
