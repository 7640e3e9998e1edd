"""Contenders against each other in rounds, until a rule decides or the budget ends.

Each round launches every contender still in once, in fresh processes and random order, so
that what drifts hits all alike. Whoever fails is out, whoever is clearly slower than the
fastest is out; the baseline stays, for the gain is told against it. How a launch happens is
the contender's business: two candidates, two presets or two runtimes are compared alike.

The chance of a false claim is shared among the comparisons with the baseline, so that all
their intervals hold together. Between contenders the same intervals only save launches.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autofit.session.events import Listener, RoundEnded
from autofit.session.preference import prefer
from autofit.session.rounds_result import Confirmation, Dropped, Ended, Standing
from autofit.statistics.estimate import center
from autofit.statistics.stopping_rule import MIN_ROUNDS, Decision, StoppingRule, decide
from autofit.trial.metric import Metric, median_metric, time_ratio
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# Rounds that rivals get to be told apart once the gain over the baseline is known.
_ROUNDS_FOR_RIVALS = 2


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that can be launched for a round; `id` is the candidate's key in a tune."""

    id: str
    launch: Callable[[int], Trial]


def round_purpose(number: int, side: str = "") -> TrialPurpose:
    """Return the purpose of a trial of a round; the side where the candidate is not enough."""
    return TrialPurpose("confirm", "round", round=number, side=side)


def confirm(
    contenders: Sequence[Contender],
    *,
    workload: Workload,
    metric: Metric,
    rng: random.Random,
    rule: StoppingRule | None = None,
    has_baseline: bool = True,
    budget_left: Callable[[], bool] = lambda: True,
    made: Sequence[Trial] = (),
    emit: Listener = lambda _: None,
) -> Confirmation:
    """Launch the contenders until their order is known; the first is the baseline.

    `budget_left` is asked before every launch. `made` are trials of an earlier run of the
    same rounds: none of them is launched again, and the rule comes to the same decisions.
    `emit` is told of each round.
    The rule's `comparisons` are set here: every contender against the baseline.

    Raises:
        ValueError: an id occurs twice.
    """
    ids = [contender.id for contender in contenders]
    if len(set(ids)) < len(ids):
        raise ValueError(f"contenders are not told apart: {ids}")
    baseline = ids[0] if has_baseline and ids else None
    contest = _Contest(
        contenders={contender.id: contender for contender in contenders},
        baseline=baseline,
        rule=replace(rule or StoppingRule(), comparisons=max(len(ids) - 1, 1)),
        workload=workload,
        metric=metric,
        made=_by_round(made),
        emit=emit,
    )
    return contest.run(rng, budget_left)


def _by_round(trials: Sequence[Trial]) -> dict[tuple[str, int], Trial]:
    return {
        (trial.purpose.side or trial.candidate.key, trial.purpose.round): trial
        for trial in trials
        if trial.purpose.role == "round" and trial.purpose.round is not None
    }


@dataclass(slots=True)
class _Contest:
    contenders: Mapping[str, Contender]
    baseline: str | None
    rule: StoppingRule
    workload: Workload
    metric: Metric
    made: Mapping[tuple[str, int], Trial]
    emit: Listener
    rounds: int = 0
    trials: dict[str, list[Trial]] = field(default_factory=dict)
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    dropped: dict[str, Dropped] = field(default_factory=dict)

    def run(self, rng: random.Random, budget_left: Callable[[], bool]) -> Confirmation:
        self.trials = {name: [] for name in self.contenders}
        self.values = {name: {} for name in self.contenders}
        ended: Ended = "rounds"
        for number in range(1, self.rule.last_round + 1):
            is_complete = self._round(number, rng, budget_left)
            self._drop_slower(number)
            if not is_complete:
                ended = "budget"
                break
            self.rounds = number
            self.emit(self._told())
            if not self._alive():
                ended = "failed"
                break
            if number >= MIN_ROUNDS and self._is_decided():
                ended = "decided"
                break
        return self._conclude(ended)

    def _round(self, number: int, rng: random.Random, budget_left: Callable[[], bool]) -> bool:
        """Launch everyone still in once; False where the budget ended before the last."""
        alive = self._alive()
        for name in rng.sample(alive, len(alive)):
            trial = self.made.get((name, number))
            if trial is None:
                if not budget_left():
                    return False
                trial = self.contenders[name].launch(number)
            self.trials[name].append(trial)
            value = median_metric(trial.measurement, self.workload, self.metric)
            if trial.is_completed and value is not None:
                self.values[name][number] = value
            else:
                self.dropped[name] = Dropped(number, "failed", outcome=trial.outcome)
        return True

    def _alive(self) -> list[str]:
        return [name for name in self.contenders if name not in self.dropped]

    def _told(self) -> RoundEnded:
        """The round that is over, for who looks on."""
        leader, ratio = self._leader(), None
        if leader is not None and self.baseline is not None and leader != self.baseline:
            ratio = self._decision(leader, self.baseline).ratio
        return RoundEnded(self.rounds, self.rule.last_round, leader, ratio, self.baseline)

    def _drop_slower(self, number: int) -> None:
        leader = self._leader()
        if leader is None:
            return
        for name in self._alive():
            if name not in (leader, self.baseline):
                decision = self._decision(name, leader)
                if decision.verdict == "worse":
                    self.dropped[name] = Dropped(number, "slower", than=leader)

    def _leader(self) -> str | None:
        """The fastest of those still in, over the rounds that all of them have run."""
        alive = [name for name in self._alive() if self.values[name]]
        if not alive:
            return None
        shared = set.intersection(*(set(self.values[name]) for name in alive))
        first = self.values[alive[0]]

        def speed(name: str) -> float:
            own = self.values[name]
            return center([self._log_ratio(own[r], first[r]) for r in sorted(shared)])

        return max(alive, key=speed) if shared else None

    def _log_ratio(self, value: float, reference: float) -> float:
        return math.log(time_ratio(reference, value, self.metric))

    def _decision(self, name: str, reference: str) -> Decision:
        ids = list(self.contenders)
        if ids.index(name) < ids.index(reference):
            # Asked one way round only, so that the two answers never differ.
            return self._decision(reference, name).mirrored()
        own, other = self.values[name], self.values[reference]
        paired = sorted(set(own) & set(other))
        return decide([self._log_ratio(own[r], other[r]) for r in paired], self.rule)

    def _is_decided(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        others = [name for name in self._alive() if name != leader]
        open_ones = [n for n in others if self._decision(n, leader).verdict == "undecided"]
        if not open_ones or self.baseline in (None, leader) or self.baseline in open_ones:
            return not open_ones
        # The gain is told; between rivals that are nearly alike there is little left to win.
        told_at = self._decision(leader, self.baseline).decided_at
        return told_at is not None and self.rounds >= told_at + _ROUNDS_FOR_RIVALS

    def _conclude(self, ended: Ended) -> Confirmation:
        if ended == "budget" and self.rounds >= MIN_ROUNDS:
            self.rule = replace(self.rule, ended_at=self.rounds)
        leader = self._leader()
        baseline = self.baseline if self.baseline not in self.dropped else None
        standings = [
            Standing(
                id=name,
                metric=self.metric,
                trials=tuple(self.trials[name]),
                values=dict(self.values[name]),
                dropped=self.dropped.get(name),
                against_baseline=self._decision(name, baseline)
                if baseline and name != baseline
                else None,
                against_leader=self._decision(name, leader) if leader and name != leader else None,
            )
            for name in self.contenders
        ]
        return Confirmation(
            metric=self.metric,
            rule=self.rule,
            rounds=self.rounds,
            ended=ended,
            baseline=self.baseline,
            leader=leader,
            winner=_winner(standings, leader, self.rule.min_effect),
            standings=tuple(standings),
        )


def _winner(standings: Sequence[Standing], leader: str | None, min_effect: float) -> str | None:
    """The preferred one of the fastest and those as fast, by all that is known.

    A gain that was shown is not given away: where one of them is better than the baseline,
    so must be whoever wins.
    """
    if leader is None:
        return None
    fastest = [standing for standing in standings if standing.id == leader]
    group = fastest + [standing for standing in standings if _is_as_fast(standing, min_effect)]
    return prefer([standing for standing in group if standing.is_better] or group).id


def _is_as_fast(standing: Standing, min_effect: float) -> bool:
    """Whether one still in ties with the leader, or was not told apart and looks alike."""
    against = standing.against_leader
    if standing.dropped is not None or against is None or against.ratio is None:
        return False
    looks_alike = against.ratio.median > 1 / (1 + min_effect)
    return against.verdict == "tie" or (against.verdict == "undecided" and looks_alike)
