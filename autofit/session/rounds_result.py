"""What came of comparing contenders in rounds: who stands where, and how surely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autofit.statistics.estimate import Estimate, estimate, outliers
from autofit.statistics.stopping_rule import Decision, StoppingRule, Verdict
from autofit.trial.metric import Metric
from autofit.trial.outcome import Outcome, outcome_to_dict
from autofit.trial.trial import Trial

# decided: the rule had an answer for everyone; rounds, budget: there were no more of them;
# failed: nobody was left.
Ended = Literal["decided", "rounds", "budget", "failed"]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Why a contender was launched no more, from the round after `round` on."""

    round: int
    why: Literal["failed", "slower"]
    than: str | None = None
    outcome: Outcome | None = None

    def to_dict(self) -> dict[str, Any]:
        """The reason as JSON data."""
        return {
            "round": self.round,
            "why": self.why,
            "than": self.than,
            "outcome": outcome_to_dict(self.outcome) if self.outcome else None,
        }


@dataclass(frozen=True, slots=True)
class Standing:
    """One contender: its launches, its metric by round, and how it compares.

    `against_baseline` and `against_leader` are None for these two themselves, and where
    there is none.
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
        """Whether it was shown to be faster than the baseline."""
        return self.against_baseline is not None and self.against_baseline.verdict == "better"

    @property
    def estimate(self) -> Estimate | None:
        """The metric over its launches, none left out."""
        return estimate(list(self.values.values()))

    @property
    def outlier_rounds(self) -> tuple[int, ...]:
        """The rounds in which its launch was far from its others."""
        rounds = list(self.values)
        return tuple(rounds[place] for place in outliers(list(self.values.values())))

    def to_dict(self) -> dict[str, Any]:
        """The standing as JSON data."""
        found = self.estimate
        return {
            "id": self.id,
            "trials": [trial.number for trial in self.trials],
            "values": {str(number): value for number, value in self.values.items()},
            "estimate": found.to_dict() if found else None,
            "outlier_rounds": list(self.outlier_rounds),
            "against_baseline": _decision(self.against_baseline),
            "against_leader": _decision(self.against_leader),
            "dropped": self.dropped.to_dict() if self.dropped else None,
        }


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The end of a contest.

    `leader` is the fastest of those still in, `winner` the one preferred among it and those
    tied with it; both are None where nobody was left. `rounds` counts complete rounds.
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
        """The standing of a contender.

        Raises:
            KeyError: there is no such contender.
        """
        for standing in self.standings:
            if standing.id == contender_id:
                return standing
        raise KeyError(contender_id)

    def has(self, contender_id: str) -> bool:
        """Whether a contender was in the rounds."""
        return any(standing.id == contender_id for standing in self.standings)

    @property
    def gain(self) -> Estimate | None:
        """How many times faster than the baseline the winner is; None without either."""
        decision = self._against_baseline()
        return decision.ratio if decision else None

    @property
    def verdict(self) -> Verdict | None:
        """The winner against the baseline; None without either, or where they are one."""
        decision = self._against_baseline()
        return decision.verdict if decision else None

    @property
    def tied(self) -> tuple[str, ...]:
        """Those still in that are as fast as the leader, within the smallest effect."""
        return self._still_in("tie")

    @property
    def not_told_apart(self) -> tuple[str, ...]:
        """Those still in that more rounds might have shown to be slower than the leader."""
        return self._still_in("undecided")

    def to_dict(self) -> dict[str, Any]:
        """The confirmation as JSON data."""
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
            "not_told_apart": list(self.not_told_apart),
            "contenders": [standing.to_dict() for standing in self.standings],
        }

    def _against_baseline(self) -> Decision | None:
        return self.standing(self.winner).against_baseline if self.winner else None

    def _still_in(self, verdict: Verdict) -> tuple[str, ...]:
        return tuple(
            standing.id
            for standing in self.standings
            if standing.dropped is None
            and standing.against_leader is not None
            and standing.against_leader.verdict == verdict
        )


def _decision(decision: Decision | None) -> dict[str, Any] | None:
    if decision is None:
        return None
    return {
        "verdict": decision.verdict,
        "ratio": decision.ratio.to_dict() if decision.ratio else None,
        "decided_at": decision.decided_at,
    }
