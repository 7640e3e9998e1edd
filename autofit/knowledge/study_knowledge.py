"""Studies and knowledge: the earlier studies of a task, and the launches of a finished one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import psutil

from autofit.knowledge.knowledge_document import (
    MOST_LAUNCHES,
    KnownDevice,
    KnownLaunch,
    KnownMachine,
    KnownModel,
    KnownRequest,
    KnownStudy,
)
from autofit.memory.memory_model import MemoryModel
from autofit.search.problem import DeviceWork, ModelTraffic, PastLaunch, PastStudy
from autofit.session.search_problem import (
    device_work,
    goal_of,
    model_traffic,
    predicted_fit,
    token_seconds,
)
from autofit.session.task import Task
from autofit.session.task_setup import cpu_name, read_environment
from autofit.study.fingerprint import Environment, installed_gib
from autofit.trial.candidate import Candidate, Params
from autofit.trial.device import Device
from autofit.trial.metric import fastest_repeats
from autofit.trial.outcome import lacks_device_memory
from autofit.trial.parameter_groups import PLACEMENT_PARAMS
from autofit.trial.trial import Trial
from autofit.trial.workload import Request
from autofit.units import MIB

# What a study is worth for another one: with the same build and driver, of another build, of
# another driver, of another model; and the time in which it loses half of its worth.
_SAME, _OTHER_BUILD, _OTHER_DRIVER, _OTHER_MODEL = 0.99, 0.9, 0.95, 0.99
_HALF_LIFE_S = 2 * 365 * 86400.0
# The most similar studies are used. Each takes some tens of milliseconds to fit again.
_MOST_USED = 8
_SIZES = ("layers", "movable_bytes", "read_bytes", "fixed_read_bytes", "kv_bytes")
_LEFT_OUT = frozenset({*PLACEMENT_PARAMS, "context", "parallel"})


def machine_of(task: Task) -> KnownMachine:
    """Return the machine of a task, with all its devices."""
    return this_machine(task.runtime.devices or (), task.cores.logical)


def this_machine(devices: Sequence[Device], cpu_count: int) -> KnownMachine:
    """Return this machine with all its devices, whichever a task uses."""
    return KnownMachine(
        cpu=cpu_name(),
        cpu_count=cpu_count,
        memory_gib=installed_gib(psutil.virtual_memory().total / MIB),
        # A driver reserves some MiB, which change with its version.
        devices=tuple(
            f"{one.name}: {one.description}, {round(one.total_mib / 1024)} GiB" for one in devices
        ),
        links=tuple(
            f"{one.name}: {one.link_gb_s:.3g} GB/s" for one in devices if one.link_gb_s is not None
        ),
    )


def learn_study(
    task: Task,
    trials: Sequence[Trial],
    memory: MemoryModel | None = None,
    *,
    study_id: str,
    finished_at: float,
) -> KnownStudy | None:
    """Return what a study showed about its machine, or None if no launch of it says anything.

    Its memory model, if it has one, says what was predicted for its launches.
    """
    launches = [launch for trial in trials if (launch := _learn_launch(task, trial)) is not None]
    if not launches:
        return None
    environment = read_environment(task)
    traffic = _traffic(task)
    return KnownStudy(
        id=study_id,
        finished_at=finished_at,
        build=environment.build,
        driver=environment.driver,
        model=KnownModel(
            name=task.model_path.stem,
            digest=environment.model_digest,
            **{name: getattr(traffic, name) for name in _SIZES},
        ),
        context=task.workload.context,
        parallel=task.workload.parallel,
        requests=tuple(KnownRequest(**asdict(one)) for one in task.workload.requests),
        launches=tuple(launches[:MOST_LAUNCHES]),
        fitting_margins_mib=_margins_mib(trials, memory, fitted=True),
        failing_margins_mib=_margins_mib(trials, memory, fitted=False),
    )


def planned_launch(task: Task, candidate: Candidate) -> PastLaunch | None:
    """Return a candidate as a launch that was not made, or None if its placement is unknown."""
    work = _work_of(candidate, task)
    return None if work is None else PastLaunch(_settings(task, candidate, {}), work, None, None)


def past_studies(
    task: Task,
    known: Sequence[KnownStudy],
    environment: Environment | None = None,
    *,
    now: float,
) -> tuple[PastStudy, ...]:
    """Return the studies that say most about a task, as its search takes them.

    Args:
        task: the task.
        known: studies on its machine.
        environment: of the task, which is read if it is None.
        now: seconds since the epoch; older studies say less.
    """
    if not known:
        return ()
    environment = environment or read_environment(task)
    found = []
    for study in known:
        worth = _SAME * 0.5 ** (max(0.0, now - study.finished_at) / _HALF_LIFE_S)
        worth *= 1.0 if study.build == environment.build else _OTHER_BUILD
        worth *= 1.0 if study.driver == environment.driver else _OTHER_DRIVER
        worth *= 1.0 if study.model.digest == environment.model_digest else _OTHER_MODEL
        launches = [one for one in (_past_launch(task, one) for one in study.launches) if one]
        if launches:
            requests = tuple(Request(**one.model_dump()) for one in study.requests)
            sizes = {name: getattr(study.model, name) for name in _SIZES}
            traffic = ModelTraffic(**sizes, is_known=True)
            found.append(
                PastStudy(
                    traffic,
                    requests,
                    tuple(launches),
                    worth,
                    study.fitting_margins_mib,
                    study.failing_margins_mib,
                )
            )
    found.sort(key=lambda one: one.similarity)
    return tuple(found[-_MOST_USED:])


def _margins_mib(
    trials: Sequence[Trial], memory: MemoryModel | None, *, fitted: bool
) -> tuple[float, ...]:
    """Return the predicted margins of the launches that fitted, or that ran out of memory."""
    found = []
    for trial in trials if memory is not None else ():
        has_outcome = trial.is_completed if fitted else lacks_device_memory(trial.outcome)
        if has_outcome and memory is not None and "n_gpu_layers" in trial.candidate.params:
            fit = predicted_fit(trial.candidate, memory, math.nan)
            if fit is not None:
                found.append(round(fit.margin_mib, 1))
    # Those with the least room say most.
    return tuple(sorted(set(found), reverse=not fitted)[:MOST_LAUNCHES])


def _traffic(task: Task) -> ModelTraffic:
    return model_traffic(task.inventory, max(1, round(goal_of(task).depth)))


def _learn_launch(task: Task, trial: Trial) -> KnownLaunch | None:
    """Return what a launch showed, or None if it failed or its placement is unknown."""
    measured = trial.measurement
    if measured is None or not trial.is_completed or trial.shows_fit_only:
        return None
    if task.devices and "n_gpu_layers" not in trial.candidate.params:
        return None  # the runtime itself placed the layers
    work = _work_of(trial.candidate, task)
    if work is None:
        return None
    fastest = fastest_repeats(measured, task.workload)
    prompt_s, predicted_s = token_seconds(fastest, task.workload)
    if not prompt_s and not predicted_s:
        return None
    return KnownLaunch(
        settings=dict(_settings(task, trial.candidate, measured.applied)),
        devices={
            device.name: KnownDevice(layers=layers, host_layers=host_layers)
            for device, layers, host_layers in zip(
                task.devices, work.layers, work.host_layers, strict=True
            )
            if layers
        },
        first_device=task.devices[work.first].name if task.devices else "",
        whole_host_layers=work.whole_layers,
        is_divided=work.is_divided,
        prompt_s_per_token=prompt_s,
        generated_s_per_token=predicted_s,
        load_s=measured.load_s,
    )


def _work_of(candidate: Candidate, task: Task) -> DeviceWork | None:
    return device_work(candidate, task) if task.devices else DeviceWork((), (), 0, 0)


def _settings(task: Task, candidate: Candidate, applied: Mapping[str, Any]) -> Params:
    """Return the effective settings of a launch, without placement."""
    runtime = task.runtime
    settings = {
        **runtime.dialect.defaults,
        "threads": task.cores.physical,
        **applied,
        **candidate.params,
    }
    return {
        name: value
        for name, value in settings.items()
        if name not in _LEFT_OUT and name in runtime.dialect.parameters
    }


def _past_launch(task: Task, launch: KnownLaunch) -> PastLaunch | None:
    """Return a launch as the search of a task takes it, or None if it used other devices."""
    names = [device.name for device in task.devices]
    first = launch.first_device
    if not set(launch.devices) <= set(names) or (names and first not in names):
        return None
    none = KnownDevice(layers=0)
    devices = [launch.devices.get(name, none) for name in names]
    work = DeviceWork(
        tuple(one.layers for one in devices),
        tuple(one.host_layers for one in devices),
        launch.whole_host_layers,
        names.index(first) if names else 0,
        launch.is_divided,
    )
    return PastLaunch(
        launch.settings, work, launch.prompt_s_per_token, launch.generated_s_per_token
    )
