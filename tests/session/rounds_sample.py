"""Simulated launches for tests of rounds: known speeds under known noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autofit.session.rounds import Contender, round_purpose
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement, Sample
from autofit.trial.outcome import Completed, Outcome
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial
from autofit.trial.workload import Request, Workload

WORKLOAD = Workload("sample", context=4096, parallel=1, requests=(Request(512, 129),))


def trial_of(
    seconds: float,
    *,
    candidate: Candidate | None = None,
    outcome: Outcome | None = None,
    free_mib: float | None = 1000.0,
    purpose: TrialPurpose | None = None,
    number: int = 0,
) -> Trial:
    """A trial whose one request took so long."""
    sample = Sample(512, seconds / 4, seconds / 4, 129, seconds * 3 / 4)
    return Trial(
        number=number,
        purpose=purpose or TrialPurpose("confirm", "round"),
        candidate=candidate or Candidate({}),
        outcome=outcome or Completed(),
        measurement=Measurement(samples=(sample,), free_mib={"GPU0": free_mib, "host": 5.0})
        if outcome is None
        else None,
    )


@dataclass(slots=True)
class Bench:
    """A machine on which contenders of known speed are launched; `order` has the launches."""

    seed: int = 1
    noise: float = 0.02
    order: list[tuple[str, int]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    state: float = 1.0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def contender(
        self,
        name: str,
        seconds: float | Callable[[int], float],
        *,
        fails_in: int | None = None,
        outcome: Outcome | None = None,
        free_mib: float | None = 1000.0,
        params: dict | None = None,
    ) -> Contender:
        """A contender that takes some seconds, under the bench's noise."""
        candidate = Candidate({"name": name, **(params or {})})

        def launch(number: int) -> Trial:
            self.order.append((name, number))
            usual = seconds(number) if callable(seconds) else seconds
            trial = trial_of(
                usual * self.state * self.random.lognormvariate(0.0, self.noise),
                candidate=candidate,
                outcome=outcome if fails_in == number else None,
                free_mib=free_mib,
                purpose=round_purpose(number, name),
                number=len(self.order),
            )
            self.trials.append(trial)
            return trial

        return Contender(name, launch)

    def launches_of(self, name: str) -> int:
        """The number of launches of a contender."""
        return sum(launched == name for launched, _ in self.order)


def names(pairs: Sequence[tuple[str, int]], number: int) -> list[str]:
    """The contenders launched in a round, in order."""
    return [name for name, launched in pairs if launched == number]
