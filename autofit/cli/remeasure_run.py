"""One remeasurement from the command line: situations, study, lock, console and signals."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autofit.cli.options.preset_argument import PresetOptions, preset_situation
from autofit.cli.stopping import Stopping
from autofit.cli.study_run import opened_study
from autofit.errors import MissingError, UsageError
from autofit.presets.read_preset import read_preset
from autofit.runtime.server.launcher import RUNTIME_FIT
from autofit.session.budget import Budget
from autofit.session.build_task import build_task
from autofit.session.events import Finished, Listener, Notice, PhaseStarted
from autofit.session.runner import Launching, TrialRunner
from autofit.session.task import Task
from autofit.session.task_options import TaskOptions
from autofit.session.task_setup import make_launcher, read_environment, study_header
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.sweep.remeasure import BEFORE, KEPT, Contender, Remeasure, neighbours
from autofit.trial.candidate import Candidate, Params

# The layout of settings that say themselves where layers lie.
_AS_TOLD = "as told"


def settings_of(text: str) -> Params:
    """The settings of a JSON object.

    Raises:
        UsageError: it is none, or a value is no number, text or truth.
    """
    try:
        params = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--params: {error}", "a JSON object of settings by name") from error
    if not isinstance(params, dict) or not all(
        isinstance(value, str | int | float | bool) for value in params.values()
    ):
        raise UsageError("--params is no object of plain values", 'such as {"ubatch": 512}')
    return params


@dataclass(slots=True)
class RemeasureRun:
    """A remeasurement of one task, and of the same one on an old runtime."""

    options: TaskOptions
    situations: tuple[Task, ...]
    candidate: Candidate
    layout: str
    has_neighbours: bool
    rounds: int
    asks: bool
    total_s: float
    seed: int
    _stopping: Stopping = field(default_factory=Stopping)

    @classmethod
    def of(
        cls,
        options: TaskOptions,
        params: Params | None,
        preset: str | None,
        against: str | None,
        **more: Any,  # noqa: ANN401 - the other fields
    ) -> RemeasureRun:
        """Look at runtimes, machine and model.

        Raises:
            UsageError: something named is not there, or cannot be launched here.
        """
        runtimes = [options.runtime, *([against] if against else [])]
        situations = tuple(
            _situation(replace(options, runtime=runtime), preset) for runtime in runtimes
        )
        first = situations[0]
        candidate, layout = first.baseline, RUNTIME_FIT
        if params is not None:
            candidate, layout = Candidate({**params, **first.task_params}), _AS_TOLD
            if first.devices and "n_gpu_layers" not in params and "tensor_split" not in params:
                layout = RUNTIME_FIT
                situations = tuple(
                    replace(one, baseline_params=dict(candidate.params)) for one in situations
                )
        _refuse_missing_devices([*options.devices_mib, *_devices_of(candidate)], first)
        return cls(options, situations, candidate, layout, **more)

    def execute(self, folder: Path | None, *, resume: bool, argv: list[str]) -> dict[str, Any]:
        """Run it and keep what came of it."""
        first = self.situations[0]
        with opened_study(
            folder,
            self._header(argv),
            first,
            resume=resume,
            stopping=self._stopping,
            budget_s=self.total_s,
        ) as (study, console):
            result = self._measure(study, console)
            study.conclude(result)
            console(Finished(result))
        return result

    def _measure(self, study: Study, listener: Listener) -> dict[str, Any]:
        first = self.situations[0]
        budget = Budget(time.monotonic, self.total_s)
        notes: list[str] = []

        def note(text: str) -> None:
            notes.append(text)
            listener(Notice(text))

        listener(PhaseStarted("confirm"))
        told = Remeasure(
            contenders=list(self._contenders(study, budget, listener)),
            workload=first.workload,
            slot_context=self._slot_context(),
            rounds=self.rounds,
            asks=self.asks,
            seed=self.seed,
            note=note,
        ).run()
        return {
            "study": str(study.path),
            "model": str(first.model_path),
            "runtime": first.runtime.name,
            **told,
            "is_sparse": first.inventory.is_moe,
            "seconds": round(budget.spent_s, 1),
            "notes": notes,
        }

    def _contenders(self, study: Study, budget: Budget, listener: Listener) -> Iterator[Contender]:
        def runner(launching: Launching) -> TrialRunner:
            return TrialRunner(
                study=study,
                launching=launching,
                budget=budget,
                emit=listener,
                wall_clock=time.time,
                should_stop=self._stopping.is_asked,
            )

        for name, task in zip((KEPT, BEFORE), self.situations, strict=False):
            launching = make_launcher(task)
            contender = Contender(name, self.candidate, self.layout, runner(launching))
            yield contender
            if self.has_neighbours and name == KEPT:
                yield from neighbours(contender)

    def _slot_context(self) -> int:
        workload = self.situations[0].workload
        slots = max(1, self.candidate.get_int("parallel", 1))
        return max(1, self.candidate.get_int("context", workload.context) // slots)

    def _header(self, argv: list[str]) -> StudyHeader:
        first = self.situations[0]
        return study_header(
            first,
            space={"name": "remeasure"},
            seed=self.seed,
            argv=argv,
            options={
                "params": dict(self.candidate.params),
                "args": [*first.baseline_args, *first.extra_args],
                "env": dict(first.env),
                "wrapper": list(first.wrapper),
                "rpc": first.rpc,
                "builds": [read_environment(one).build for one in self.situations],
            },
        )


def _situation(options: TaskOptions, preset: str | None) -> Task:
    if preset is None:
        return build_task(options, searches=False)
    found = preset_situation(
        read_preset(preset),
        PresetOptions(
            runtime=options.runtime,
            dialect=options.dialect,
            model=options.model,
            workload=options.workload,
            context=options.context,
            parallel=options.parallel,
            extra_args=options.extra_args,
        ),
        objective="request_s",
    )
    return replace(found, env={**found.env, **options.env})


def _devices_of(candidate: Candidate) -> list[str]:
    """The devices that settings name."""
    named = candidate.get_str("devices", "").split(",")
    return [name for name in named if name not in ("", "none")]


def _refuse_missing_devices(names: Sequence[str], task: Task) -> None:
    """Raise where a device is named that the runtime does not list.

    Raises:
        MissingError: so it is.
    """
    there = {device.name for device in task.runtime.devices or ()}
    missing = [name for name in dict.fromkeys(names) if name not in there]
    if missing:
        listed = ", ".join(sorted(there)) or "none"
        raise MissingError(f"no device {', '.join(missing)}", f"the runtime lists: {listed}")
