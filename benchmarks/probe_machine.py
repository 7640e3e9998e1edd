"""A probe on a random simulated machine, through real processes, and the truth."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes.machine_fixtures import FakeMachine
from fakes.physics import Run, Simulation
from fakes.random_machine import Case
from fakes.settings import KV_BYTES
from trial.purpose_sample import purpose_of

from autofit.memory.memory_model import MemoryModel
from autofit.probe.boundary_line import choose_layouts, choose_points, make_lines
from autofit.probe.find_boundaries import find_boundaries
from autofit.runtime.server.launcher import Launcher
from autofit.runtime.server.request_plan import RequestPlan, plan_fit_test, plan_measurement
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.session.budget import Budget
from autofit.session.build_task import build_task
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.runner import TrialRunner
from autofit.session.task_options import TaskOptions
from autofit.session.task_setup import make_launcher, make_planner, search_header
from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate
from autofit.trial.purpose import Phase
from autofit.trial.trial import Trial

CACHE_TYPES = ("q8_0", "f16")
# What of a candidate may ask for more memory by itself, all else being equal.
_GROWING = ("ubatch", "context")
_KV = ("cache_type_k", "cache_type_v")


@dataclass(frozen=True, slots=True)
class Truth:
    """The numbers of host layers that fit along one line; None where there is no candidate."""

    fitting: Mapping[int, bool]

    @property
    def fits(self) -> int | None:
        """The fewest host layers that fit."""
        return min((n for n, fits in self.fitting.items() if fits), default=None)

    @property
    def fails(self) -> int | None:
        """The most below those that do not."""
        limit = max(self.fitting) + 1 if self.fits is None else self.fits
        return max((n for n in self.fitting if n < limit), default=None)

    @property
    def is_monotone(self) -> bool:
        """Return whether every larger number of host layers fits, too."""
        return self.fits is None or all(fits for n, fits in self.fitting.items() if n > self.fits)


@dataclass(slots=True)
class ProbedMachine:
    """One machine with its model, and what a probe found on it."""

    case: Case
    fake: FakeMachine
    factory: CandidateFactory
    options: TaskOptions
    memory: MemoryModel = field(init=False)
    result: dict[str, Any] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    points: dict[str, Point] = field(default_factory=dict)
    seconds: float = 0.0
    _simulation: Simulation | None = None

    def __post_init__(self) -> None:
        self.memory = self.factory.task.memory_model(make_planner(self.factory.task))

    @classmethod
    def of(cls, case: Case, folder: Path, **fake_fields: Any) -> ProbedMachine:
        """The machine with its programs, its model and a workload in a folder."""
        fake = FakeMachine(folder, case.machine, **fake_fields)
        (prompt, predicted), *_ = case.requests
        workload = folder / "workload.yaml"
        workload.write_text(
            f"name: case\ncontext: {case.context}\nparallel: 1\n"
            f"requests: [{{prompt_tokens: {prompt}, predicted_tokens: {predicted}}}]\n"
        )
        options = TaskOptions(
            model=fake.write_model(case.model),
            runtime=str(fake.server),
            dialect=str(fake.dialect),
            space="moe",
            workload=str(workload),
        )
        task = build_task(options)
        factory = CandidateFactory(task)
        return cls(case, fake, factory, options, points=choose_points(task, CACHE_TYPES))

    def probe(
        self, study: Path, *, layouts: Sequence[str] = (), cache_types: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Probe as the command does."""
        began = time.monotonic()
        with self._runner(study) as (runner, launching):
            lines = make_lines(
                self.factory,
                self.memory,
                choose_layouts(self.factory, layouts),
                {kind: self.points[kind] for kind in cache_types or self.points},
            )
            launching.unreported_mib = self.memory.unreported_mib
            self.result = find_boundaries(
                self.factory.task, lines, self.memory, runner, lambda _: None
            )
            self.trials = list(runner.trials)
        self.seconds = time.monotonic() - began
        return self.result

    def launch(
        self,
        study: Path,
        candidates: Sequence[Candidate],
        *,
        layout: str = "",
        phase: Phase = "boundary",
        repeats: int = 0,
    ) -> list[Trial]:
        """Launch candidates in order, each judged by those before it.

        With `repeats` the workload is measured so often, else only a full-length prompt sent.
        """
        with self._runner(study) as (runner, launching):
            launching.unreported_mib = self.memory.unreported_mib
            return [
                runner.run(purpose_of(phase), one, self._effort(one, repeats), layout=layout)
                for one in candidates
            ]

    @contextmanager
    def _runner(self, study: Path) -> Iterator[tuple[TrialRunner, Launcher]]:
        task = self.factory.task
        launching = make_launcher(task)
        self.memory = task.memory_model(make_planner(task))
        with Study.create(study, search_header(task, self.options, seed=0, argv=[])) as folder:
            yield (
                TrialRunner(
                    study=folder,
                    launching=launching,
                    budget=Budget(time.monotonic),
                    emit=lambda _: None,
                    wall_clock=time.time,
                    memory=self.memory,
                ),
                launching,
            )

    def candidate(self, layout: str, cache_type: str, host_layers: int) -> Candidate | None:
        """Return the candidate of a line with this number of host layers."""
        return self.factory.candidate_of(
            {**self.points[cache_type], LAYOUT_AXIS: layout, HOST_LAYERS_AXIS: host_layers}
        )

    def truth(self, layout: str, cache_type: str, *, device_layers: int | None = None) -> Truth:
        """Every candidate of a line under the simulation, without noise.

        Where no layout can be cut with this number of host expert layers, some are cut that keep
        whole layers off the devices; `device_layers` leaves out those with another number.
        """
        fitting = {}
        for host_layers in range(self.factory.most_host_layers() + 1):
            candidate = self.candidate(layout, cache_type, host_layers)
            if candidate is not None and device_layers in (
                None,
                candidate.get_int("n_gpu_layers", 0),
            ):
                fitting[host_layers] = self.fits(candidate)
        return Truth(fitting)

    def fits(self, candidate: Candidate) -> bool:
        """Return whether a candidate truly fits, with the prompt that proves it."""
        run = self.run(candidate)
        return run.is_completed and run.spilled_mib == 0

    def run(self, candidate: Candidate) -> Run:
        """Return the true run of a candidate."""
        if self._simulation is None:
            self._simulation = Simulation(self.case.machine, self.case.model)
        requests = self._effort(candidate).within(self.case.context).requests
        return self._simulation.truth(candidate.params, requests)

    def _effort(self, candidate: Candidate, repeats: int = 0) -> RequestPlan:
        workload, ubatch = self.factory.task.workload, candidate.get_int("ubatch", 512)
        if repeats:
            return plan_measurement(workload, ubatch, repeats=repeats)
        return plan_fit_test(workload, ubatch)

    def dominated(self) -> list[Trial]:
        """Launches that an earlier failure rules out: the same, but more of it on devices.

        One that was only later found to have spilled had not failed yet.
        """
        return [
            trial
            for place, trial in enumerate(self.trials)
            if any(
                not earlier.is_completed and _asks_for_more(trial.candidate, earlier.candidate)
                for earlier in self.trials[:place]
            )
        ]


def _asks_for_more(candidate: Candidate, failed: Candidate) -> bool:
    """Return whether a candidate needs at least as much of the devices as a failed one."""
    mine, other = dict(candidate.params), dict(failed.params)
    moved, refused = mine.pop("n_cpu_moe", 0), other.pop("n_cpu_moe", 0)
    several = "," in str(mine.get("devices", ","))
    if int(moved) > int(refused) or (several and (not moved) != (not refused)):
        return False
    for name in _GROWING:
        if int(mine.pop(name, 0)) < int(other.pop(name, 0)):
            return False
    for name in _KV:
        kinds = (str(mine.pop(name, "f16")), str(other.pop(name, "f16")))
        if KV_BYTES[kinds[0]] < KV_BYTES[kinds[1]]:
            return False
    return mine == other
