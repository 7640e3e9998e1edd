"""A machine whose launches are noisy in a known way, for benchmarks of the statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autofit.session.rounds import Contender, round_purpose
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement, Sample
from autofit.trial.outcome import Completed
from autofit.trial.trial import Trial
from autofit.trial.workload import Request, Workload

WORKLOAD = Workload("benchmark", context=4096, parallel=1, requests=(Request(512, 129),))
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Noise:
    """Variation of launches and requests, as factors of the true seconds.

    `between` and `within` are standard deviations of the logarithm, of a launch and of a
    request; `drift` slows the machine with every launch, up to `drift_limit`; a burst begins
    before a launch with `burst_chance`, lasts `burst_launches` launches and multiplies their
    seconds by `burst_factor`; `stall_chance` is that of one request taking three times as
    long. `freedom` makes the launches' noise Student's t; `growth` multiplies its deviation
    with every launch.
    """

    between: float = 0.0
    within: float = 0.0
    drift: float = 0.0
    drift_limit: float = 0.5
    burst_chance: float = 0.0
    burst_factor: float = 1.0
    burst_launches: int = 1
    stall_chance: float = 0.0
    freedom: float = math.inf
    growth: float = 1.0


@dataclass(slots=True)
class NoisyMachine:
    """One simulated machine; its state goes on from launch to launch."""

    noise: Noise
    random: np.random.Generator
    launches: int = 0
    burst_left: int = 0

    def seconds(self, true_s: float) -> list[float]:
        """The seconds of the requests of one launch."""
        noise = self.noise
        self.launches += 1
        if self.burst_left == 0 and self.random.random() < noise.burst_chance:
            self.burst_left = noise.burst_launches
        state = min(noise.drift * self.launches, noise.drift_limit)
        if self.burst_left:
            self.burst_left -= 1
            state += math.log(noise.burst_factor)
        growth = min(noise.growth ** (self.launches - 1), 10.0)
        state += noise.between * growth * self._draw()
        logs = state + noise.within * self.random.standard_normal(REPEATS)
        logs += math.log(3.0) * (self.random.random(REPEATS) < noise.stall_chance)
        return list(true_s * np.exp(logs))

    def _draw(self) -> float:
        freedom = self.noise.freedom
        if math.isinf(freedom):
            return self.random.standard_normal()
        return self.random.standard_t(freedom) / math.sqrt(freedom / (freedom - 2))

    def contender(self, name: str, true_s: float) -> Contender:
        """Return a contender that takes this many seconds a request on this machine."""
        candidate = Candidate({"name": name})

        def launch(number: int) -> Trial:
            samples = tuple(
                Sample(512, seconds / 4, seconds / 4, 129, seconds * 3 / 4, order=order)
                for order, seconds in enumerate(self.seconds(true_s))
            )
            return Trial(
                number=self.launches,
                candidate=candidate,
                outcome=Completed(),
                measurement=Measurement(samples=samples),
                purpose=round_purpose(number, name),
            )

        return Contender(name, launch)
