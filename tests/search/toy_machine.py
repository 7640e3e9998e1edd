"""A small simulated machine for tests of the search."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from autofit.memory.demand import kv_bytes
from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy, SearchStep
from autofit.search.problem import Fit, Goal, ModelTraffic, Observation, Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Constraint, Point, Space
from autofit.trial.candidate import Candidate
from autofit.trial.workload import Request

LAYERS = 24
PROMPT, PREDICTED = 4096, 257
SPACE = Space(
    name="toy",
    suits="moe",
    axes=(
        Axis("ubatch", (2048, 512, 1024, 4096)),
        Axis("batch", (4096, 2048)),
        Axis("cache_type", ("f16", "q8_0"), ("cache_type_k", "cache_type_v")),
        Axis("load_mode", ("none", "mmap")),
    ),
    layouts=("single",),
    constraints=(Constraint("ubatch", "<=", "batch"),),
)


@dataclass(slots=True)
class ToyMachine:
    """A machine with one device.

    Attributes:
        room_mib: memory of the device.
        error_mib: error of predictions, which assume that much more memory.
        noise: standard deviation of the logarithm of a measurement.
        host_gain: whether generation is faster with more experts in system RAM.
        layouts: values of the layout axis.
        has_estimates: whether memory is predicted.
        goal: of the search.
        estimates: the number of predictions so far.
    """

    room_mib: float = 9000.0
    error_mib: float = 0.0
    noise: float = 0.0
    host_gain: bool = False
    layouts: tuple[str, ...] = ("single:A",)
    has_estimates: bool = True
    goal: Goal = field(default_factory=lambda: Goal(requests=(Request(PROMPT, PREDICTED),)))
    estimates: int = 0

    def problem(self) -> Problem:
        """Return the search problem of the machine."""
        return Problem(
            space=SPACE,
            layouts=self.layouts,
            most_host_layers=LAYERS,
            candidate_of=lambda point: Candidate(point) if SPACE.allows(point) else None,
            fit_of=self._fit,
            goal=self.goal,
            traffic=ModelTraffic(layers=LAYERS),
        )

    def needed_mib(self, point: Point) -> float:
        """Return the device memory of a point in MiB."""
        layers = LAYERS - int(point[HOST_LAYERS_AXIS])
        cache = 800 * kv_bytes(point["cache_type"])
        return 1000 + 400 * layers + 0.4 * int(point["ubatch"]) + cache

    def _fit(self, candidate: Candidate) -> Fit | None:
        self.estimates += 1
        needed = self.needed_mib(candidate.params)
        if not self.has_estimates:
            return None
        return Fit(self.room_mib + self.error_mib - needed, needed)

    def fits(self, point: Point) -> bool:
        """Return whether a point runs."""
        return self.needed_mib(point) <= self.room_mib

    def parts(self, point: Point) -> tuple[float, float]:
        """Return the seconds per prompt token and per generated token, without noise."""
        hosted = int(point[HOST_LAYERS_AXIS])
        uploads = math.ceil(PROMPT / int(point["ubatch"])) * hosted
        upload_s = uploads * (0.03 if point["load_mode"] == "none" else 0.06)
        host_s = -0.0002 if self.host_gain else 0.0012
        return (2.0 + upload_s) / PROMPT, 0.012 + host_s * hosted

    def seconds(self, point: Point) -> float:
        """Return the seconds of a request, without noise."""
        prompt_s, predicted_s = self.parts(point)
        return prompt_s * PROMPT + predicted_s * (PREDICTED - 1)

    def observe(self, point: Point, rng: random.Random) -> Observation:
        """Launch a point and return the observation."""
        if not self.fits(point):
            return Observation(point, None, "device", 5.0)
        prompt_s, predicted_s = (
            part * math.exp(rng.gauss(0.0, self.noise)) for part in self.parts(point)
        )
        cost = prompt_s * PROMPT + predicted_s * (PREDICTED - 1)
        return Observation(point, cost, None, 10.0 + cost, prompt_s, predicted_s)

    def best_s(self) -> float:
        """Return the fewest seconds of any point that fits."""
        return min(
            self.seconds(point)
            for rest in SPACE.points()
            for hosted in range(LAYERS + 1)
            if self.fits(point := {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: hosted, **rest})
        )


def add_launch(policy: SearchPolicy, step: SearchStep, seen: Observation) -> None:
    """Add the observation of a step to its policy, or to its study if it has a speed."""
    if step.fit_only and seen.cost is not None:
        policy.add_fitting(seen.point)
    else:
        policy.study.add(seen)


def explore(
    machine: ToyMachine,
    launches: int,
    *,
    seed: int = 0,
    watch: Callable[[SearchStudy, Observation], None] = lambda _, __: None,
) -> SearchStudy:
    """Return a study after some launches of its own proposals."""
    study = SearchStudy(machine.problem(), seed=seed)
    rng = random.Random(seed)
    for _ in range(launches):
        proposal = study.ask()
        if proposal is None:
            break
        seen = machine.observe(proposal.point, rng)
        study.add(seen)
        watch(study, seen)
    return study
