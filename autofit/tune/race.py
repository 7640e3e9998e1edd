"""The confirm phase: rounds of the finalists and the baseline, as many as the budget allows."""

from __future__ import annotations

import random
from collections.abc import Sequence

from autofit.runtime.server.request_plan import plan_measurement
from autofit.session.events import PhaseStarted
from autofit.session.finalist import Finalist, baseline_finalist
from autofit.session.ranking import Ranking
from autofit.session.rounds import Contender, round_purpose, run_rounds
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.statistics.stopping_rule import MIN_ROUNDS, StoppingRule
from autofit.trial.trial import Trial

# The two best enter the rounds with the baseline, because noise often makes the truly best one
# look second best.
CONTENDERS = 2
_REPEATS = 2
# With time for fewer rounds, only the best one is compared with the baseline.
_ROUNDS_FOR_SEVERAL = 5
# Fewer than three rounds decide nothing, so three may take a little more than their share.
_OVERTIME = 1.15


def race(
    task: Task, runner: TrialRunner, baseline: Trial, finalists: Sequence[Finalist], *, seed: int
) -> Ranking | None:
    """Launch the best finalists and the baseline in rounds, or return None without a finalist."""
    chosen = list(finalists[:CONTENDERS])
    if not chosen:
        return None
    rule = _make_rule(task, runner, baseline, chosen)
    if rule.max_rounds < _ROUNDS_FOR_SEVERAL and len(chosen) > 1:
        chosen = chosen[:1]
        rule = _make_rule(task, runner, baseline, chosen)
    if baseline.is_completed:
        chosen = [baseline_finalist(task), *chosen]
    runner.emit(PhaseStarted("confirm"))
    return run_rounds(
        [_contender(finalist, task, runner) for finalist in chosen],
        workload=task.workload,
        metric=task.objective,
        rng=random.Random(seed),
        rule=rule,
        has_baseline=baseline.is_completed,
        has_time=lambda _: _has_time(runner),
        emit=runner.emit,
    )


def _make_rule(
    task: Task, runner: TrialRunner, baseline: Trial, finalists: Sequence[Finalist]
) -> StoppingRule:
    """Return a rule for as many rounds as the budget allows, fixed before the first round.

    A rule divides its error probability among all its rounds. A rule for twelve rounds that ended
    after five would give intervals that are too wide.
    """
    keys = {finalist.candidate.key for finalist in finalists}
    seconds: dict[str, float] = {}
    for trial in runner.trials:
        if trial is baseline or (trial.candidate.key in keys and trial.phase != "prove"):
            seconds[trial.candidate.key] = trial.seconds
    left_s = runner.budget.left_for_s("confirm")
    most = StoppingRule().max_rounds
    if left_s is not None:
        most = min(most, int(left_s / max(0.1, sum(seconds.values()))))
    return StoppingRule(max_rounds=max(MIN_ROUNDS, most), min_effect=task.min_effect)


def _has_time(runner: TrialRunner) -> bool:
    budget = runner.budget
    launched = sum(trial.phase == "confirm" for trial in runner.trials)
    if launched < MIN_ROUNDS * 2 and budget.total_s is not None:
        return budget.spent_s < budget.total_s * _OVERTIME
    seconds = [trial.seconds for trial in runner.trials]
    return budget.allows("confirm", sum(seconds) / max(1, len(seconds)))


def _contender(finalist: Finalist, task: Task, runner: TrialRunner) -> Contender:
    ubatch = finalist.candidate.get_int("ubatch", 512)

    def launch(number: int) -> Trial:
        return runner.run(
            round_purpose(number),
            finalist.candidate,
            plan_measurement(
                task.workload,
                ubatch,
                repeats=_REPEATS,
                enough_s=runner.budget.repeat_limit_s,
            ),
            layout=finalist.layout,
            is_verbatim=finalist.is_verbatim,
        )

    return Contender(finalist.candidate.key, launch)
