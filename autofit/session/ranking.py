"""The result of the rounds: the order of the contenders, and its certainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autofit.model.sizes.kv_cache import kv_element_bytes, kv_types
from autofit.statistics.estimate import Estimate, estimate, outliers
from autofit.statistics.stopping_rule import Decision, StoppingRule, Verdict
from autofit.trial.device import HOST_NAME
from autofit.trial.metric import Metric
from autofit.trial.outcome import Outcome, outcome_to_dict
from autofit.trial.trial import Trial

# decided: the rule decided about every contender; rounds, budget: no more were allowed;
# failed: no contender is left.
Ended = Literal["decided", "rounds", "budget", "failed"]
# Between launches of the same candidate the free memory differs by up to this much.
SAME_HEADROOM_MIB = 64.0


@dataclass(frozen=True, slots=True)
class Dropped:
    """The reason why a contender was dropped after a round, and is not launched any more.

    `than` is the id of a contender that is faster. `outcome` is the outcome of a failure.
    """

    round: int
    why: Literal["failed", "slower"]
    than: str | None = None
    outcome: Outcome | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the reason as JSON data."""
        return {
            "round": self.round,
            "why": self.why,
            "than": self.than,
            "outcome": outcome_to_dict(self.outcome) if self.outcome else None,
        }


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing of one contender: its launches, its metric in each round, and its comparisons.

    `against_baseline` is None for the baseline itself, or without one. `against_leader` is None
    for the leader itself, or without one.
    """

    id: str
    metric: Metric
    trials: tuple[Trial, ...]
    values: Mapping[int, float]
    dropped: Dropped | None
    against_baseline: Decision | None
    against_leader: Decision | None

    @property
    def is_better(self) -> bool:
        """True if the rule decided that the contender is faster than the baseline."""
        return self.against_baseline is not None and self.against_baseline.verdict == "better"

    @property
    def estimate(self) -> Estimate | None:
        """The metric over all launches of the contender."""
        return estimate(list(self.values.values()))

    @property
    def outlier_rounds(self) -> tuple[int, ...]:
        """The rounds in which the contender's launch differed much from its other launches."""
        rounds = list(self.values)
        return tuple(rounds[index] for index in outliers(list(self.values.values())))

    def to_dict(self) -> dict[str, Any]:
        """Return the standing as JSON data."""
        found = self.estimate
        return {
            "id": self.id,
            "trials": [trial.number for trial in self.trials],
            "values": {str(number): value for number, value in self.values.items()},
            "estimate": found.to_dict() if found else None,
            "outlier_rounds": list(self.outlier_rounds),
            "against_baseline": _decision_to_dict(self.against_baseline),
            "against_leader": _decision_to_dict(self.against_leader),
            "dropped": self.dropped.to_dict() if self.dropped else None,
        }


@dataclass(frozen=True, slots=True)
class Ranking:
    """The ranking of the contenders after their rounds.

    `leader` is the id of the fastest contender that was not dropped. `winner` is the id of the
    preferred one among those that are as fast. Both are None if all were dropped. `baseline` is
    an id. `rounds` counts complete rounds.
    """

    metric: Metric
    rule: StoppingRule
    rounds: int
    ended: Ended
    baseline: str | None
    leader: str | None
    winner: str | None
    standings: tuple[Standing, ...]

    def standing(self, contender_id: str) -> Standing:
        """Return the standing of a contender.

        Raises:
            KeyError: there is no such contender.
        """
        for standing in self.standings:
            if standing.id == contender_id:
                return standing
        raise KeyError(contender_id)

    def has(self, contender_id: str) -> bool:
        """Return whether a contender took part in the rounds."""
        return any(standing.id == contender_id for standing in self.standings)

    @property
    def gain(self) -> Estimate | None:
        """The winner's speedup over the baseline, or None if one is missing or they are equal."""
        decision = self._winner_against_baseline()
        return decision.ratio if decision else None

    @property
    def verdict(self) -> Verdict | None:
        """The rule's verdict on the winner, or None if there is no `gain`."""
        decision = self._winner_against_baseline()
        return decision.verdict if decision else None

    @property
    def tied(self) -> tuple[str, ...]:
        """The remaining contenders that are as fast as the leader, within the smallest effect."""
        return self._remaining("tie")

    @property
    def undecided(self) -> tuple[str, ...]:
        """The remaining contenders that further rounds might have shown to be slower."""
        return self._remaining("undecided")

    def to_dict(self) -> dict[str, Any]:
        """Return the ranking as JSON data."""
        return {
            "metric": self.metric,
            "rounds": self.rounds,
            "max_rounds": self.rule.max_rounds,
            "min_effect": self.rule.min_effect,
            "ended": self.ended,
            "baseline": self.baseline,
            "leader": self.leader,
            "winner": self.winner,
            "verdict": self.verdict,
            "gain": self.gain.to_dict() if self.gain else None,
            "tied": list(self.tied),
            "not_told_apart": list(self.undecided),
            "contenders": [standing.to_dict() for standing in self.standings],
        }

    def _winner_against_baseline(self) -> Decision | None:
        return self.standing(self.winner).against_baseline if self.winner else None

    def _remaining(self, verdict: Verdict) -> tuple[str, ...]:
        return tuple(
            standing.id
            for standing in self.standings
            if standing.dropped is None
            and standing.against_leader is not None
            and standing.against_leader.verdict == verdict
        )


def prefer(tied: Sequence[Standing]) -> Standing:
    """Return the contender with the most headroom, among equals with the widest KV type.

    Headroom counts only if it is known for all contenders. The first one wins a full tie.

    Raises:
        ValueError: there is no contender.
    """
    headrooms = [headroom_mib(standing.trials) for standing in tied]
    known = [headroom for headroom in headrooms if headroom is not None]
    most = max(known) if len(known) == len(tied) and known else None
    roomy = [
        standing
        for standing, headroom in zip(tied, headrooms, strict=True)
        if most is None or headroom is None or headroom >= most - SAME_HEADROOM_MIB
    ]
    return max(roomy, key=lambda standing: _kv_bytes(standing.trials))


def headroom_mib(trials: Sequence[Trial]) -> float | None:
    """Return the least free memory of any device at the peak of any launch, or None if unknown."""
    free = [
        mib
        for trial in trials
        if trial.measurement is not None
        for name, mib in trial.measurement.free_mib.items()
        if mib is not None and name != HOST_NAME
    ]
    return min(free, default=None)


def _kv_bytes(trials: Sequence[Trial]) -> float:
    """Return the bytes of one key and one value. A type that ggml does not have counts as 0."""
    return sum(map(kv_element_bytes, kv_types(trials[0].candidate))) if trials else 0.0


def _decision_to_dict(decision: Decision | None) -> dict[str, Any] | None:
    if decision is None:
        return None
    return {
        "verdict": decision.verdict,
        "ratio": decision.ratio.to_dict() if decision.ratio else None,
        "decided_at": decision.decided_at,
    }
