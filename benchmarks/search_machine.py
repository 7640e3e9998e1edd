"""A simulated machine as a tune sees it: its search problem, its launches, its truth."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from fakes.machine_fixtures import FakeMachine
from fakes.physics import Run, Simulation
from fakes.placement import place
from fakes.random_machine import Case
from fakes.settings import make_settings
from fakes.simulated_trial import measurement_of, outcome_of
from trial.purpose_sample import purpose_of

from autofit.machine.cpu import Cores
from autofit.memory.memory_model import MemoryModel
from autofit.model.placement.slice_costs import slice_costs
from autofit.model.sizes.inventory import read_inventory
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.program_inspector import list_devices
from autofit.runtime.server.request_plan import (
    RequestPlan,
    plan_fit_test,
    plan_measurement,
)
from autofit.search.problem import Problem
from autofit.search.space_file import read_space
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.relevant_space import relevant_space
from autofit.session.search_problem import search_problem
from autofit.session.task import Task, fitted_space, usable_devices
from autofit.trial.candidate import Candidate
from autofit.trial.purpose import Phase
from autofit.trial.trial import Trial
from autofit.trial.workload import Request, Workload

REPEATS = 2


@dataclass(slots=True)
class SearchMachine:
    """One case: what is searched, and what every point is truly worth."""

    case: Case
    folder: Path
    task: Task = field(init=False)
    simulation: Simulation = field(init=False)
    _placements: dict = field(default_factory=dict)
    _predictions: dict = field(default_factory=dict)
    _truths: dict[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case = self.case
        fake = FakeMachine(self.folder, case.machine)
        runtime = find_runtime(str(fake.server), str(fake.dialect))
        links = {device.name: device.link_gb_s for device in case.machine.devices}
        devices = [
            replace(device, link_gb_s=None if case.machine.is_unified else links[device.name])
            for device in list_devices(runtime) or ()
        ]
        model = read_inventory(fake.write_model(case.model))
        host = case.machine.host
        cores = host.cores - host.efficiency_cores
        requests = tuple(Request(prompt, predicted) for prompt, predicted in case.requests)
        cores_here = Cores(host.cores, host.cores, host.cores, cores, host.sockets)
        workload = Workload("bench", case.context, 1, requests)
        space = fitted_space(
            read_space("moe", cores=cores, all_cores=host.cores),
            runtime,
            model,
            kv_floor="q8_0",
            pins={},
        )
        self.simulation = Simulation(case.machine, case.model)
        idle = self.simulation.truth({"context": case.context, "n_gpu_layers": 0}, [(64, 8)])
        self.task = Task(
            runtime=runtime.with_devices(tuple(devices)),
            model_path=model.path,
            inventory=model,
            devices=usable_devices(devices, {}),
            cores=cores_here,
            host_available_mib=idle.host_free_mib + idle.host_used_mib,
            workload=workload,
            space=relevant_space(space, model, workload, devices, cores_here),
        )

    def memory_model(self, *, is_cold: bool = False) -> MemoryModel:
        """Return a memory model that has observed nothing; predictions by arithmetic are shared.

        One that `is_cold` has no prediction yet, as in the only search of a process.
        """
        memory = self.task.memory_model()
        return memory if is_cold else replace(memory, _arithmetic=self._predictions)

    def problem(self, memory: MemoryModel, *, is_cold: bool = False) -> Problem:
        """Return the search problem; placements are shared unless it `is_cold`."""
        if is_cold:
            slice_costs.cache_clear()
            return search_problem(CandidateFactory(self.task), memory)
        return search_problem(CandidateFactory(self.task, _placements=self._placements), memory)

    def _requests(self, candidate: Candidate) -> list[tuple[int, int]]:
        """The proof of fit, then the workload's request, repeated, as a tune asks them."""
        request_plan = plan_measurement(
            self.task.workload, candidate.get_int("ubatch", 512), repeats=REPEATS
        )
        return self._asked(request_plan)

    def _asked(self, request_plan: RequestPlan) -> list[tuple[int, int]]:
        slot = self.task.workload.context
        return [(r.prompt_tokens, r.predicted_tokens) for r in request_plan.within(slot).requests]

    def truth(self, candidate: Candidate) -> float | None:
        """Seconds of a request without noise; None where it does not run, or spills."""
        if candidate.key not in self._truths:
            requests = self._requests(candidate)[:2]
            run = self.simulation.truth(dict(candidate.params), requests)
            self._truths[candidate.key] = _request_s(run)
        return self._truths[candidate.key]

    def placement_key(self, candidate: Candidate) -> tuple:
        """Return the layers and bytes of each device, equal for candidates that place equally."""
        machine, model = self.case.machine, self.case.model
        settings = make_settings(dict(candidate.params), machine, model)
        placed = place(model, settings, machine, [1.0] * len(machine.devices))
        used = tuple(
            (index, repr(share))
            for index, share in zip(settings.devices, placed.shares, strict=True)
            if share.layers
        )
        first = settings.devices[settings.uploader or 0] if placed.hosted_layers else None
        return (first, used, repr(placed.cpu))

    def fitted_truth(self, **params: object) -> float | None:
        """Seconds of a request as the runtime's own fit places it, with some settings given."""
        candidate = self.task.baseline.with_params(**params)
        requests = self._requests(candidate)[:2]
        return _request_s(self.simulation.truth(dict(candidate.params), requests, fit=True))

    def launch(
        self,
        simulation: Simulation,
        candidate: Candidate,
        *,
        number: int,
        phase: Phase,
        asks_fit_only: bool = False,
    ) -> Trial:
        """One launch with its noise, as a trial; the baseline is placed by the runtime."""
        requests = self._requests(candidate)
        if asks_fit_only:
            ubatch = candidate.get_int("ubatch", 512)
            requests = self._asked(plan_fit_test(self.task.workload, ubatch))
        run = simulation.launch(dict(candidate.params), requests, fit=phase == "baseline")
        measured = measurement_of(run)
        samples = tuple(
            replace(sample, request=0 if sample.order else -1, is_warmup=not sample.order)
            for sample in measured.samples
        )
        return Trial(
            number=number,
            purpose=purpose_of(phase),
            candidate=candidate,
            outcome=outcome_of(run),
            measurement=replace(measured, samples=samples),
            seconds=run.seconds,
            fidelity="load" if asks_fit_only else "full",
        )


def _request_s(run: Run) -> float | None:
    is_good = run.is_completed and run.spilled_mib == 0
    return run.samples[-1].total_s if is_good else None
