"""A small made-up machine for tests of the search: two axes of memory, several of speed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from autofit.memory.demand import kv_bytes
from autofit.search.model_traffic import ModelTraffic
from autofit.search.optuna_study import SearchStudy
from autofit.search.problem import Fit, Observation, Problem
from autofit.search.search_goal import Goal
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
    """One device of `room_mib`; the estimate thinks it is `error_mib` larger.

    `host_gain` turns the slope of generation around: experts in system RAM are faster.
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
        """Its search problem."""
        return Problem(
            space=SPACE,
            layouts=self.layouts,
            most_host_layers=LAYERS,
            candidate_of=lambda point: Candidate(point) if SPACE.allows(point) else None,
            fit_of=self._fit,
            goal=self.goal,
            traits=ModelTraffic(layers=LAYERS),
        )

    def needed_mib(self, point: Point) -> float:
        """What a point takes of the device."""
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
        """Whether it really runs."""
        return self.needed_mib(point) <= self.room_mib

    def parts(self, point: Point) -> tuple[float, float]:
        """Seconds for a prompt token and for a generated one, without noise."""
        hosted = int(point[HOST_LAYERS_AXIS])
        uploads = math.ceil(PROMPT / int(point["ubatch"])) * hosted
        upload_s = uploads * (0.03 if point["load_mode"] == "none" else 0.06)
        host_s = -0.0002 if self.host_gain else 0.0012
        return (2.0 + upload_s) / PROMPT, 0.012 + host_s * hosted

    def seconds(self, point: Point) -> float:
        """Seconds of a request, without noise."""
        prompt_s, predicted_s = self.parts(point)
        return prompt_s * PROMPT + predicted_s * (PREDICTED - 1)

    def observe(self, point: Point, rng: random.Random) -> Observation:
        """What one launch of a point shows."""
        if not self.fits(point):
            return Observation(point, None, lacked="device", seconds=5.0)
        prompt_s, predicted_s = (
            part * math.exp(rng.gauss(0.0, self.noise)) for part in self.parts(point)
        )
        cost = prompt_s * PROMPT + predicted_s * (PREDICTED - 1)
        return Observation(point, cost, None, 10.0 + cost, prompt_s, predicted_s)

    def best_s(self) -> float:
        """The fewest seconds of any point that fits."""
        return min(
            self.seconds(point)
            for rest in SPACE.points()
            for hosted in range(LAYERS + 1)
            if self.fits(point := {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: hosted, **rest})
        )


def tell(study: SearchStudy, seen: Observation) -> None:
    """Tell a study what a launch showed."""
    study.tell(
        seen.point,
        seen.cost,
        lacked=seen.lacked,
        seconds=seen.seconds,
        prompt_s=seen.prompt_s,
        predicted_s=seen.predicted_s,
    )


def explore(
    machine: ToyMachine,
    launches: int,
    *,
    seed: int = 0,
    watch: Callable[[SearchStudy, Observation], None] = lambda _, __: None,
) -> SearchStudy:
    """A study after so many launches of what it asked for."""
    study = SearchStudy(machine.problem(), seed=seed)
    rng = random.Random(seed)
    for _ in range(launches):
        proposal = study.ask()
        if proposal is None:
            break
        seen = machine.observe(proposal.point, rng)
        tell(study, seen)
        watch(study, seen)
    return study
