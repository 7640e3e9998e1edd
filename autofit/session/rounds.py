"""Rounds that compare contenders, until a stopping rule decides or the budget is spent.

Each round launches every remaining contender once, in fresh processes and in random order, so
that drift of the machine affects all of them. A contender that fails, or is clearly slower
than the fastest, is dropped. The baseline is never dropped for being slow, because speedups are
measured against it. Once every remaining contender was shown to be faster than the baseline, it
is launched no more, and only they are compared. A contender may be a candidate, a preset or a
runtime, and has a function that launches it.

All comparisons with the baseline share one error probability, so that all their intervals are
valid together. Between other contenders the same intervals serve only to save launches.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autofit.session.events import Listener, RoundEnded
from autofit.session.ranking import Dropped, Ended, Ranking, Standing, prefer
from autofit.statistics.estimate import center
from autofit.statistics.stopping_rule import MIN_ROUNDS, Decision, StoppingRule, decide
from autofit.trial.metric import Metric, median_metric, time_ratio
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# Once the speedup over the baseline is known, rivals get this many more rounds to differ.
_ROUNDS_FOR_RIVALS = 2


@dataclass(frozen=True, slots=True)
class Contender:
    """A contender: something that each round launches once.

    Attributes:
        id: a unique name; in a tune it is the candidate's key.
        launch: launches the contender for a round, given by its number.
        max_rounds: the number of rounds that it takes part in, or None for all.
    """

    id: str
    launch: Callable[[int], Trial]
    max_rounds: int | None = None


def round_purpose(number: int, side: str = "") -> TrialPurpose:
    """Return the purpose of a round's trial. `side` separates contenders with equal candidates."""
    return TrialPurpose("confirm", "round", round=number, side=side)


def run_rounds(
    contenders: Sequence[Contender],
    *,
    workload: Workload,
    metric: Metric,
    rng: random.Random,
    rule: StoppingRule | Callable[[Sequence[Trial]], StoppingRule] | None = None,
    has_baseline: bool = True,
    is_fixed: bool = False,
    must_run: Collection[str] = (),
    has_time: Callable[[Sequence[str]], bool] = lambda _: True,
    emit: Listener = lambda _: None,
) -> Ranking:
    """Launch the contenders in rounds until their order is known.

    Args:
        contenders: the first is the baseline if there is one.
        workload: the requests for which the metric is computed.
        metric: the metric that is compared.
        rng: draws the order of each round.
        rule: the stopping rule, or a function that returns it from the trials of the first
            round. Its `comparisons` are set here.
        has_baseline: whether the first contender is the baseline.
        is_fixed: whether to launch all rounds of the rule, whatever the ratios.
        must_run: ids of contenders whose failure ends the rounds.
        has_time: returns whether to go on; called before every launch with the ids that the
            round has yet to launch.
        emit: shows each round.

    Raises:
        ValueError: two contenders have the same id.
    """
    ids = [contender.id for contender in contenders]
    if len(set(ids)) < len(ids):
        raise ValueError(f"contenders have the same id: {ids}")
    baseline = ids[0] if has_baseline and ids else None
    race = _Race(
        contenders={contender.id: contender for contender in contenders},
        baseline=baseline,
        rule=StoppingRule(),
        workload=workload,
        metric=metric,
        is_fixed=is_fixed,
        must_run=must_run,
        emit=emit,
    )
    return race.run(rng, has_time, rule or StoppingRule())


@dataclass(slots=True)
class _Race:
    """The rounds so far. `values` maps each contender to its metric in each round."""

    contenders: Mapping[str, Contender]
    baseline: str | None
    rule: StoppingRule
    workload: Workload
    metric: Metric
    is_fixed: bool
    must_run: Collection[str]
    emit: Listener
    rounds: int = 0
    trials: dict[str, list[Trial]] = field(default_factory=dict)
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    dropped: dict[str, Dropped] = field(default_factory=dict)

    def run(
        self,
        rng: random.Random,
        has_time: Callable[[Sequence[str]], bool],
        rule: StoppingRule | Callable[[Sequence[Trial]], StoppingRule],
    ) -> Ranking:
        self.trials = {name: [] for name in self.contenders}
        self.values = {name: {} for name in self.contenders}
        number, ended = 0, None
        while ended is None:
            number += 1
            is_complete = self._launch_round(number, rng, has_time)
            if number == 1:
                first = [trial for trials in self.trials.values() for trial in trials]
                chosen = rule if isinstance(rule, StoppingRule) else rule(first)
                self.rule = replace(chosen, comparisons=max(len(self.contenders) - 1, 1))
            if not self.is_fixed:
                self._drop_slower(number)
            if is_complete:
                self.rounds = number
                self.emit(self._round_ended())
            ended = self._ended(number) if is_complete else "budget"
        return self._rank(ended)

    def _ended(self, number: int) -> Ended | None:
        """Return why the rounds end after a complete round, or None if they go on."""
        if not self._remaining() or not self.dropped.keys().isdisjoint(self.must_run):
            return "failed"
        if number >= MIN_ROUNDS and not self.is_fixed and self._is_decided():
            return "decided"
        return "rounds" if number >= self.rule.last_round else None

    def _launch_round(
        self, number: int, rng: random.Random, has_time: Callable[[Sequence[str]], bool]
    ) -> bool:
        """Launch every remaining contender once; return False if the budget ends before that."""
        names = self._rivals() if self._is_baseline_beaten() else self._remaining()
        limits = {name: self.contenders[name].max_rounds for name in names}
        launched = [name for name, most in limits.items() if most is None or number <= most]
        order = rng.sample(launched, len(launched))
        for index, name in enumerate(order):
            if not has_time(order[index:]):
                return False
            trial = self.contenders[name].launch(number)
            self.trials[name].append(trial)
            value = median_metric(trial.measurement, self.workload, self.metric)
            if trial.is_completed and value is not None:
                self.values[name][number] = value
            else:
                self.dropped[name] = Dropped(number, "failed", outcome=trial.outcome)
        return True

    def _remaining(self) -> list[str]:
        return [name for name in self.contenders if name not in self.dropped]

    def _rivals(self) -> list[str]:
        return [name for name in self._remaining() if name != self.baseline]

    def _is_baseline_beaten(self) -> bool:
        """Return whether each remaining contender was shown to be faster than the baseline."""
        if self.is_fixed or self.baseline is None or self.baseline in self.dropped:
            return False
        rivals, baseline = self._rivals(), self.baseline
        return bool(rivals) and all(
            self._decision(name, baseline).verdict == "better" for name in rivals
        )

    def _round_ended(self) -> RoundEnded:
        leader, ratio = self._leader(), None
        if leader is not None and self.baseline is not None and leader != self.baseline:
            ratio = self._decision(leader, self.baseline).ratio
        return RoundEnded(self.rounds, self.rule.last_round, leader, ratio, self.baseline)

    def _drop_slower(self, number: int) -> None:
        leader = self._leader()
        if leader is None:
            return
        for name in self._remaining():
            if name not in (leader, self.baseline):
                decision = self._decision(name, leader)
                if decision.verdict == "worse":
                    self.dropped[name] = Dropped(number, "slower", than=leader)

    def _leader(self) -> str | None:
        """Return the fastest remaining contender, by the rounds that all of them have run."""
        names = self._rivals() if self._is_baseline_beaten() else self._remaining()
        remaining = [name for name in names if self.values[name]]
        if not remaining:
            return None
        shared = set.intersection(*(set(self.values[name]) for name in remaining))
        first = self.values[remaining[0]]

        def speed(name: str) -> float:
            own = self.values[name]
            return center([self._log_ratio(own[r], first[r]) for r in sorted(shared)])

        return max(remaining, key=speed) if shared else None

    def _log_ratio(self, value: float, reference: float) -> float:
        return math.log(time_ratio(reference, value, self.metric))

    def _decision(self, name: str, reference: str) -> Decision:
        ids = list(self.contenders)
        if ids.index(name) < ids.index(reference):
            # Computed in one direction only, so that the two answers never differ.
            return self._decision(reference, name).mirrored()
        own, other = self.values[name], self.values[reference]
        paired = sorted(set(own) & set(other))
        return decide([self._log_ratio(own[r], other[r]) for r in paired], self.rule)

    def _is_decided(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        others = [name for name in self._remaining() if name != leader]
        undecided = [n for n in others if self._decision(n, leader).verdict == "undecided"]
        if not undecided or self.baseline in (None, leader) or self.baseline in undecided:
            return not undecided
        # The speedup is known; between rivals of nearly the same speed there is little to win.
        decided_at = self._decision(leader, self.baseline).decided_at
        return decided_at is not None and self.rounds >= decided_at + _ROUNDS_FOR_RIVALS

    def _rank(self, ended: Ended) -> Ranking:
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
        return Ranking(
            metric=self.metric,
            rule=self.rule,
            rounds=self.rounds,
            ended=ended,
            baseline=self.baseline,
            leader=leader,
            winner=_choose_winner(standings, leader, self.rule.min_effect),
            standings=tuple(standings),
        )


def _choose_winner(
    standings: Sequence[Standing], leader: str | None, min_effect: float
) -> str | None:
    """Return the preferred one of the contenders as fast as the leader, or None without a leader.

    If one of these is better than the baseline, the winner must be, too, so that a speedup that
    was shown is not lost.
    """
    if leader is None:
        return None
    fastest = [standing for standing in standings if standing.id == leader]
    group = fastest + [standing for standing in standings if _is_as_fast(standing, min_effect)]
    return prefer([standing for standing in group if standing.is_better] or group).id


def _is_as_fast(standing: Standing, min_effect: float) -> bool:
    """Return whether a remaining contender is as fast as the leader, or may be."""
    against = standing.against_leader
    if standing.dropped is not None or against is None or against.ratio is None:
        return False
    is_close = against.ratio.median > 1 / (1 + min_effect)
    return against.verdict == "tie" or (against.verdict == "undecided" and is_close)
