"""Looks at runtime, machine, model and task before anything is launched."""

from __future__ import annotations

import platform
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from autofit import __version__
from autofit.cli.options.baseline_option import read_baseline
from autofit.cli.options.runtime_args import refuse_decided
from autofit.cli.options.task_options import TaskOptions
from autofit.errors import UsageError
from autofit.machine.cpu import read_cores
from autofit.machine.device_source import DeviceSource, find_device_source
from autofit.machine.host_memory import HostMemory
from autofit.machine.memory_watcher import UNKNOWN
from autofit.machine.nvml import nvidia_driver
from autofit.machine.rpc import split_endpoint
from autofit.model.sizes.inventory import ModelInventory, inventory
from autofit.model.sizes.run_time_memory import context_mib, opens_context_to_list
from autofit.process import scrubbed_environment
from autofit.runtime.command.redaction import redact_command
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.discovery.find_runtime import find_runtime, make_offline_runtime
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.program_inspector import list_devices
from autofit.runtime.planner.planner import RuntimePlanner
from autofit.runtime.server.launcher import Launcher
from autofit.runtime.server.send_requests import PromptSource, read_prompt_text
from autofit.search.space import Space
from autofit.search.space_file import read_space, read_workload
from autofit.session.device_name import misspelt
from autofit.session.requirement import Requirement
from autofit.session.task import Task, fitted_space, usable_devices
from autofit.study.fingerprint import Environment, file_digest
from autofit.study.study_header import StudyHeader
from autofit.trial.candidate import Limits
from autofit.trial.device import Device
from autofit.trial.metric import Metric
from autofit.trial.workload import Workload
from autofit.tune.front import END_OBJECTIVES
from autofit.units import MIB
from autofit.yaml_files import bundled_root

# A slow disk or network share still reads this much, and a load is more than reading.
_SLOWEST_READ_MIB_S = 50.0
_LEAST_LOAD_LIMIT_S = 300.0


def build_task(
    options: TaskOptions,
    *,
    objective: Metric = "request_s",
    requirements: tuple[Requirement, ...] = (),
    keeps_front: bool = False,
    baseline: str | None = None,
    section: str | None = None,
    allow_missing: bool = False,
    searches: bool = True,
) -> Task:
    """Everything a run knows before its first launch.

    `baseline` is the user's own command or a file of it, of which `section` names a part; what
    it says of the task counts where the options do not. With `allow_missing` neither the runtime
    nor the devices named need be there. Unless it `searches`, the words for every launch may
    set what a search would.

    Raises:
        UsageError: a file, name or value is wrong.
        NothingFitsError: the space is left without values here.
    """
    model = inventory(options.model)
    own = None
    if baseline is not None:
        own, options = read_baseline(baseline, section, options)
    workload = read_workload(options.workload, context=options.context, parallel=options.parallel)
    judged = {objective, *(r.metric for r in requirements), *(END_OBJECTIVES * keeps_front)}
    _refuse_without_generation(workload, judged)
    runtime = own.runtime if own else _runtime(options, allow_missing=allow_missing)
    listed = list_devices(runtime, options.rpc) if runtime.fingerprint else ()
    found = _really_free(listed or (), runtime, options.env)
    devices = usable_devices(found, options.devices_mib, allow_missing=allow_missing)
    cores = read_cores()
    space = read_space(options.space or _usual_space(model, devices), cores=cores.performance)
    fitted = fitted_space(space, runtime, model, kv_floor=options.kv_floor, pins=options.pins)
    refuse_decided(options.extra_args, runtime, fitted if searches else None)
    return Task(
        runtime=runtime.with_devices(found),
        model_path=options.model.expanduser().absolute(),
        inventory=model,
        devices=devices,
        cores=cores,
        host_available_mib=HostMemory().available_mib(),
        workload=workload,
        space=fitted,
        objective=objective,
        requirements=requirements,
        keeps_front=keeps_front,
        rpc=options.rpc,
        extra_args=options.extra_args,
        env=options.env,
        wrapper=options.wrapper,
        chooses_devices=bool(options.devices_mib),
        baseline_params=own.command.params if own else None,
        baseline_args=own.command.rest if own else (),
        notices=(
            *(own.notices if own else ()),
            *_task_notices(options, workload, model),
            *misspelt(options.devices_mib, (device.name for device in found)),
        ),
    )


def _refuse_without_generation(workload: Workload, metrics: Container[Metric]) -> None:
    """A request of a single token has no rate of generation to be judged by."""
    if "tg" in metrics and workload.longest_predicted_tokens <= 1:
        raise UsageError(
            f"workload {workload.name} generates 1 token a request: there is no tg to judge by",
            "give requests more predicted_tokens, or another --objective or --require",
        )


def _task_notices(
    options: TaskOptions, workload: Workload, model: ModelInventory
) -> Iterator[str]:
    """What the user's own context and slots make of the task."""
    slot = workload.slot_context
    if workload.requests != read_workload(options.workload).requests:
        asked = ", ".join(f"{r.prompt_tokens}+{r.predicted_tokens}" for r in workload.requests)
        yield (
            f"requests are cut to the {slot} tokens of context that each has: "
            f"{asked} prompt and generated tokens"
        )
    if 0 < model.context_train < slot:
        yield (
            f"{slot} tokens of context for a request exceed the {model.context_train} that the "
            "model was trained for"
        )


def _runtime(options: TaskOptions, *, allow_missing: bool) -> Runtime:
    try:
        return find_runtime(options.runtime, options.dialect)
    except UsageError:
        if options.runtime is not None or not allow_missing:
            raise
        return make_offline_runtime(options.dialect or "llama_server")


def planner(task: Task) -> RuntimePlanner | None:
    """The runtime's own planner, None where it has none or a device is not there."""
    there = {device.name for device in task.runtime.devices or ()}
    if not task.devices or not there >= {device.name for device in task.devices}:
        return None
    found = RuntimePlanner(
        task.runtime,
        task.model_path,
        rpc=task.rpc,
        extra_args=task.extra_args,
    )
    return found if found.command else None


def _usual_space(model: ModelInventory, devices: tuple[Device, ...]) -> str:
    if not devices:
        return "cpu"
    return "moe" if model.is_moe else "dense"


def launcher(task: Task) -> Launcher:
    """What launches the task's candidates."""
    size_mib = task.inventory.total_bytes / MIB
    return Launcher(
        runtime=task.runtime,
        model_path=task.model_path,
        workload=task.workload,
        prompts=PromptSource(read_prompt_text(task.workload)),
        memory=memory_source(task),
        rpc=task.rpc,
        extra_args=task.extra_args,
        env=task.env,
        wrapper=task.wrapper,
        baseline_args=task.baseline_args,
        limits=Limits(load_s=_LEAST_LOAD_LIMIT_S + size_mib / _SLOWEST_READ_MIB_S),
        units=task.inventory.units,
        limits_mib=task.limits_mib,
        find_memory=partial(memory_source, task),
    )


def memory_source(task: Task, pci_ids: Mapping[str, str] | None = None) -> DeviceSource:
    """The counters of the task's devices; `pci_ids` are addresses told by a log."""
    return _counters(task.devices, task.runtime, task.env, pci_ids)


def _counters(
    devices: Sequence[Device],
    runtime: Runtime,
    env: Mapping[str, str],
    pci_ids: Mapping[str, str] | None = None,
) -> DeviceSource:
    return find_device_source(
        devices,
        env=scrubbed_environment(env),
        pci_ids=pci_ids,
        memory_command=runtime.dialect.memory_command or (),
    )


def _really_free(
    listed: Sequence[Device], runtime: Runtime, env: Mapping[str, str]
) -> tuple[Device, ...]:
    """The devices with what is free while no program of ours holds a context on them.

    A CUDA or ROCm runtime lists what is left beside its own driver context, some 500 MiB, but
    estimates count that context as taken.
    """
    counters = _counters(listed, runtime, env).read()
    devices = []
    for device in listed:
        counted = counters.get(device.name, UNKNOWN).free_mib
        beside = context_mib(device.name) if opens_context_to_list(device.name) else 0.0
        free_mib = device.usable_mib + beside if counted is None else counted
        is_remote = split_endpoint(device.description) is not None
        devices.append(device if is_remote else replace(device, usable_mib=free_mib))
    return tuple(devices)


def study_header(
    task: Task,
    *,
    space: dict[str, Any],
    seed: int,
    argv: Sequence[str],
    options: dict[str, Any],
) -> StudyHeader:
    """The head of a study whose launches are of this task; keys in `argv` are hidden."""
    return StudyHeader(
        autofit_version=__version__,
        created_at=time.time(),
        model_path=str(task.model_path),
        model_name=task.model_path.stem,
        runtime_path=str(task.runtime.program),
        dialect=task.runtime.dialect.name,
        space=space,
        workload=task.workload,
        objective=task.objective,
        environment=environment(task),
        seed=seed,
        argv=redact_command(argv),
        options=options,
    )


def header(task: Task, options: TaskOptions, *, seed: int, argv: list[str]) -> StudyHeader:
    """The head of a study of the task's space."""
    return study_header(
        task,
        space=_space_document(task.space),
        seed=seed,
        argv=argv,
        options={
            "requirements": [str(requirement) for requirement in task.requirements],
            "devices_mib": options.devices_mib,
            "rpc": task.rpc,
            "pins": options.pins,
            "env": dict(task.env),
            "wrapper": list(task.wrapper),
            "kv_floor": options.kv_floor,
            "extra_args": list(options.extra_args),
            "baseline": {
                "params": dict(task.baseline.params),
                "args": list(task.baseline_args),
            },
            **_own_dialect(task.runtime.dialect),
        },
    )


def _own_dialect(dialect: Dialect) -> dict[str, str]:
    """The file of a dialect that did not come with autofit: elsewhere no name may find it."""
    path = dialect.path.absolute()
    return {} if path.is_relative_to(bundled_root()) else {"dialect_file": str(path)}


def _space_document(space: Space) -> dict[str, Any]:
    return {
        "name": space.name,
        "layouts": list(space.layouts),
        "parameters": {axis.name: list(axis.values) for axis in space.axes},
        "constraints": [" ".join(asdict(c).values()) for c in space.constraints],
        "pinned": dict(space.pinned),
    }


def environment(task: Task) -> Environment:
    """Machine, build and model, as far as a result depends on them."""
    runtime: Runtime = task.runtime
    return Environment(
        cpu=_cpu_name(),
        cpu_count=task.cores.logical,
        memory_mib=psutil.virtual_memory().total / MIB,
        devices=tuple(
            f"{device.name}: {device.description}, {device.total_mib:.0f} MiB"
            for device in task.devices
        ),
        driver=nvidia_driver(),
        build=f"{runtime.version.text.splitlines()[0] if runtime.version.text else ''}"
        f" [{runtime.fingerprint}]",
        model_digest=file_digest(task.inventory.files),
        system=platform.platform(),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()
