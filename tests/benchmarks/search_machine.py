"""A simulated machine as a tune sees it: its search problem, its launches, its truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from fakes.machine_fixtures import FakeMachine
from fakes.physics import Run, Simulation
from fakes.random_machine import Case
from fakes.simulated_trial import measurement_of, outcome_of

from autofit.machine.cpu import Cores
from autofit.model.inventory import inventory
from autofit.runtime.device_list import list_devices
from autofit.runtime.discovery import find_runtime
from autofit.runtime.effort import measuring_effort
from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.search.space_file import read_space
from autofit.trial.candidate import Candidate
from autofit.trial.trial import Phase, Trial
from autofit.trial.workload import Request, Workload
from autofit.tuning.candidates import CandidateMaker
from autofit.tuning.situation import Situation, fitted_space, usable_devices

REPEATS = 2
# Host layers between the points that are looked at first when the optimum is sought.
_STRIDE = 6
# Lines whose best of these is not within this of the best of all are not looked at again.
_PROMISING = 1.25
# What changes the memory of a point; all combinations of the rest share a placement.
_MEMORY = ("ubatch", "cache_type", "prefetch_slots", "moe_cache_mib")


@dataclass(slots=True)
class SearchMachine:
    """One case: what is searched, and what every point is truly worth."""

    case: Case
    folder: Path
    situation: Situation = field(init=False)
    simulation: Simulation = field(init=False)
    _placing: dict = field(default_factory=dict)
    _estimates: dict = field(default_factory=dict)
    _truths: dict[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case = self.case
        fake = FakeMachine(self.folder, case.machine)
        runtime = find_runtime(str(fake.server), str(fake.dialect))
        devices = list_devices(runtime) or ()
        model = inventory(fake.write_model(case.model))
        cores = case.machine.host.cores
        requests = tuple(Request(prompt, predicted) for prompt, predicted in case.requests)
        self.simulation = Simulation(case.machine, case.model)
        idle = self.simulation.truth({"context": case.context, "n_gpu_layers": 0}, [(64, 8)])
        self.situation = Situation(
            runtime=runtime.with_devices(tuple(devices)),
            model_path=model.path,
            inventory=model,
            devices=usable_devices(devices, {}),
            cores=Cores(cores, cores, cores, cores),
            host_available_mib=idle.host_free_mib + idle.host_used_mib,
            workload=Workload("bench", case.context, 1, requests),
            space=fitted_space(
                read_space("moe", cores=cores), runtime, model, kv_floor="q8_0", pins={}
            ),
        )

    def maker(self) -> CandidateMaker:
        """Makes candidates and estimates; what follows from the header alone is shared."""
        return CandidateMaker(
            self.situation, None, _placing=self._placing, _estimates=self._estimates
        )

    def _requests(self, candidate: Candidate) -> list[tuple[int, int]]:
        """The proof of fit, then the workload's request, repeated, as a tune asks them."""
        effort = measuring_effort(
            self.situation.workload, candidate.get_int("ubatch", 512), repeats=REPEATS
        )
        slot = self.situation.workload.context
        return [(r.prompt_tokens, r.predicted_tokens) for r in effort.within(slot).requests]

    def truth(self, candidate: Candidate) -> float | None:
        """Seconds of a request without noise; None where it does not run, or spills."""
        if candidate.key not in self._truths:
            requests = self._requests(candidate)[:2]
            run = self.simulation.truth(dict(candidate.params), requests)
            self._truths[candidate.key] = _request_s(run)
        return self._truths[candidate.key]

    def fitted_truth(self, **params: object) -> float | None:
        """Seconds of a request as the runtime's own fit places it, with some settings given."""
        candidate = self.situation.baseline.with_params(**params)
        requests = self._requests(candidate)[:2]
        return _request_s(self.simulation.truth(dict(candidate.params), requests, fit=True))

    def launch(
        self, simulation: Simulation, candidate: Candidate, *, number: int, phase: Phase
    ) -> Trial:
        """One launch with its noise, as a trial; the baseline is placed by the runtime."""
        run = simulation.launch(
            dict(candidate.params), self._requests(candidate), fit=phase == "baseline"
        )
        measured = measurement_of(run)
        samples = tuple(
            replace(sample, request=0 if sample.order else -1, is_warmup=not sample.order)
            for sample in measured.samples
        )
        return Trial(
            number=number,
            phase=phase,
            candidate=candidate,
            outcome=outcome_of(run),
            measurement=replace(measured, samples=samples),
            seconds=run.seconds,
        )

    def optimum(self) -> tuple[float, Point]:
        """The best point of the whole space, and its seconds without noise.

        All combinations of values are tried at every sixth count of host layers of every
        layout, and at every count around the best of those that come near the best of all.
        """
        maker = self.maker()
        problem = maker.problem()
        seen: dict[tuple, tuple[float, Point] | None] = {}

        def best_at(layout: str, line: tuple, hosted: int) -> tuple[float, Point] | None:
            if (layout, line, hosted) not in seen:
                found = [
                    (seconds, point)
                    for rest in lines[line]
                    if (
                        candidate := maker.candidate_of(
                            point := {LAYOUT_AXIS: layout, HOST_LAYERS_AXIS: hosted, **rest}
                        )
                    )
                    and (seconds := self.truth(candidate)) is not None
                ]
                seen[layout, line, hosted] = min(found, key=lambda one: one[0], default=None)
            return seen[layout, line, hosted]

        lines = _by_memory(problem)
        most = problem.most_host_layers
        coarse = [*range(most, 0, -_STRIDE), 0]
        tops = {}
        for layout in problem.layouts:
            for line in lines:
                found = [(best[0], n) for n in coarse if (best := best_at(layout, line, n))]
                if found:
                    tops[layout, line] = min(found)
        lowest = min(seconds for seconds, _ in tops.values())
        for (layout, line), (seconds, hosted) in tops.items():
            if seconds <= lowest * _PROMISING:
                for near in range(
                    max(0, hosted - _STRIDE + 1), min(most, hosted + _STRIDE - 1) + 1
                ):
                    best_at(layout, line, near)
        return min((best for best in seen.values() if best), key=lambda best: best[0])

    def points(self, problem: Problem) -> Iterator[Point]:
        """Every point of the space."""
        for layout in problem.layouts:
            for host_layers in range(problem.most_host_layers + 1):
                for point in problem.space.points():
                    yield {LAYOUT_AXIS: layout, HOST_LAYERS_AXIS: host_layers, **point}


def _request_s(run: Run) -> float | None:
    is_good = run.is_completed and run.spilled_mib == 0
    return run.samples[-1].total_s if is_good else None


def _by_memory(problem: Problem) -> dict[tuple, list[Point]]:
    """Combinations of values by those that change memory."""
    found: dict[tuple, list[Point]] = {}
    for point in problem.space.points():
        found.setdefault(tuple(point.get(name) for name in _MEMORY), []).append(point)
    return found
