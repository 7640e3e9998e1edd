"""The confirm phase: rounds of the finalists and the baseline, as many as the budget allows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from autofit.runtime.server.request_plan import plan_measurement
from autofit.session.budget_advice import proof_seconds
from autofit.session.events import PhaseStarted
from autofit.session.finalist import Finalist, baseline_finalist
from autofit.session.ranking import Ranking
from autofit.session.rounds import Contender, round_purpose, run_rounds
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.statistics.stopping_rule import MIN_ROUNDS, StoppingRule
from autofit.trial.metric import fastest_repeats, median_metric, time_ratio
from autofit.trial.trial import Trial

# The two best enter the rounds with the baseline, because noise often makes the truly best one
# look second best.
CONTENDERS = 2
_REPEATS = 2
# A gain of this size in the search is plain: short requests to the slow baseline, and one repeat
# of all others, show it in three or four rounds. On real cards three rounds of full requests to
# a baseline that was 2.4 times as slow took half of the whole tune.
_PLAIN_GAIN = 1.3
_PLAIN_ROUNDS = 4
_PLAIN_EARLY_SHARE = 0.5
# With time for fewer rounds, only the best one is compared with the baseline.
_ROUNDS_FOR_SEVERAL = 5
# Fewer than three rounds decide nothing, so three may take a little more than their share.
_OVERTIME = 1.15


def race(
    task: Task, runner: TrialRunner, baseline: Trial, finalists: Sequence[Finalist], *, seed: int
) -> Ranking | None:
    """Launch the best finalists and the baseline in rounds.

    Return None without a finalist, and if the budget has no time for the fewest rounds and a
    proof: a proven winner that was not confirmed is worth more than a confirmed one that was not
    proven.
    """
    chosen = list(finalists[:CONTENDERS])
    if not chosen:
        return None
    is_plain = _expected_gain(task, runner, baseline, chosen[0]) >= _PLAIN_GAIN
    rule = _make_rule(task, runner, baseline, chosen)
    if rule.max_rounds < _ROUNDS_FOR_SEVERAL and len(chosen) > 1:
        chosen = chosen[:1]
        rule = _make_rule(task, runner, baseline, chosen)
    if not _leaves_time(task, runner, baseline, chosen):
        return None
    if is_plain:
        rule = replace(rule, early_share=_PLAIN_EARLY_SHARE, early_rounds=_PLAIN_ROUNDS)
    if baseline.is_completed:
        chosen = [baseline_finalist(task), *chosen]
    runner.emit(PhaseStarted("confirm"))
    return run_rounds(
        [_contender(finalist, task, runner, is_plain=is_plain) for finalist in chosen],
        workload=task.workload,
        metric=task.objective,
        rng=random.Random(seed),
        rule=rule,
        has_baseline=baseline.is_completed,
        has_time=lambda _: _has_time(runner),
        emit=runner.emit,
    )


def _expected_gain(task: Task, runner: TrialRunner, baseline: Trial, finalist: Finalist) -> float:
    """Return the speedup over the baseline in the launches of the search, or 0 if unknown.

    It only decides how the rounds are made, because the search selected what was fast.
    """
    searched = next(
        (
            trial
            for trial in runner.trials
            if trial.candidate == finalist.candidate
            and trial.is_completed
            and trial.phase in ("boundary", "search")
        ),
        None,
    )
    if not baseline.is_completed or searched is None:
        return 0.0
    before, after = _fastest(baseline, task), _fastest(searched, task)
    return time_ratio(before, after, task.objective) if before and after else 0.0


def _fastest(trial: Trial, task: Task) -> float | None:
    if trial.measurement is None:
        return None
    fastest = fastest_repeats(trial.measurement, task.workload)
    return median_metric(fastest, task.workload, task.objective)


def _make_rule(
    task: Task, runner: TrialRunner, baseline: Trial, finalists: Sequence[Finalist]
) -> StoppingRule:
    """Return a rule for as many rounds as the budget allows, fixed before the first round.

    A rule divides its error probability among all its rounds. A rule for twelve rounds that ended
    after five would give intervals that are too wide.
    """
    left_s = runner.budget.left_for_s("confirm")
    most = StoppingRule().max_rounds
    if left_s is not None:
        most = min(most, int(left_s / max(0.1, _round_s(runner, baseline, finalists))))
    return StoppingRule(max_rounds=max(MIN_ROUNDS, most), min_effect=task.min_effect)


def _leaves_time(
    task: Task, runner: TrialRunner, baseline: Trial, finalists: Sequence[Finalist]
) -> bool:
    """Return whether the budget has time for the fewest rounds and a proof."""
    budget = runner.budget
    if budget.total_s is None:
        return True
    key = finalists[0].candidate.key
    searched = [t for t in runner.trials if t.candidate.key == key and t.is_completed]
    is_proven = any(trial.purpose.role == "proof" for trial in searched)
    proof_s = 0.0 if is_proven or not searched else proof_seconds(searched[-1], task.workload)
    rounds_s = MIN_ROUNDS * _round_s(runner, baseline, finalists)
    return budget.spent_s + rounds_s + proof_s <= budget.total_s * _OVERTIME


def _round_s(runner: TrialRunner, baseline: Trial, finalists: Sequence[Finalist]) -> float:
    """Return the seconds of a round, from the latest launches of the contenders."""
    keys = {finalist.candidate.key for finalist in finalists}
    seconds = {
        trial.candidate.key: trial.seconds
        for trial in runner.trials
        if trial is baseline or (trial.candidate.key in keys and trial.phase != "prove")
    }
    return sum(seconds.values())


def _has_time(runner: TrialRunner) -> bool:
    budget = runner.budget
    launched = sum(trial.phase == "confirm" for trial in runner.trials)
    if launched < MIN_ROUNDS * 2 and budget.total_s is not None:
        return budget.spent_s < budget.total_s * _OVERTIME
    seconds = [trial.seconds for trial in runner.trials]
    return budget.allows("confirm", sum(seconds) / max(1, len(seconds)))


def _contender(
    finalist: Finalist, task: Task, runner: TrialRunner, *, is_plain: bool
) -> Contender:
    ubatch = finalist.candidate.get_int("ubatch", 512)

    def launch(number: int) -> Trial:
        return runner.run(
            round_purpose(number),
            finalist.candidate,
            plan_measurement(
                task.workload,
                ubatch,
                repeats=1 if is_plain else _REPEATS,
                is_short=is_plain and finalist.is_baseline,
                enough_s=runner.budget.repeat_limit_s,
            ),
            layout=finalist.layout,
            is_verbatim=finalist.is_verbatim,
        )

    return Contender(finalist.candidate.key, launch)
