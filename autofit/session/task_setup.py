"""The parts that the launches of a task need: launcher, planner, memory counters, study header."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from autofit import __version__
from autofit.machine.device_source import DeviceSource, find_device_source, with_gpu_facts
from autofit.machine.memory_counter import UNKNOWN
from autofit.machine.nvml import nvidia_driver
from autofit.machine.rpc_servers import split_endpoint
from autofit.memory.memory_model import MemoryModel
from autofit.model.sizes.unreported_memory import context_mib, opens_context_to_list
from autofit.process.environment import scrubbed_environment
from autofit.runtime.command.argv_writer import Purpose, UnsupportedSetting, make_launch_plan
from autofit.runtime.command.redaction import (
    redact_arguments,
    redact_command,
    redact_variables,
    redact_wrapper,
)
from autofit.runtime.diagnosis.memory_evidence import ExpectedSlots
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.planner.planner import RuntimePlanner
from autofit.runtime.server.launcher import Launcher
from autofit.runtime.server.send_requests import PromptSource, read_prompt_text
from autofit.search.space import Space
from autofit.session.task import Task
from autofit.session.task_options import TaskOptions
from autofit.session.unchanged_files import UnchangedFiles
from autofit.study.fingerprint import Environment, file_digest
from autofit.study.study_header import StudyHeader
from autofit.trial.candidate import Candidate, LaunchPlan, Limits
from autofit.trial.device import Device
from autofit.trial.measurement import MemoryReading
from autofit.units import MIB
from autofit.yaml_files import bundled_root

# Even a slow disk or network share reads this much, and a load takes longer than the reading.
_SLOWEST_READ_MIB_S = 50.0
_LEAST_LOAD_LIMIT_S = 300.0


def make_launcher(
    task: Task,
    memory: MemoryModel | None = None,
    on_reading: Callable[[MemoryReading], None] = lambda _: None,
) -> Launcher:
    """Return a launcher for candidates of the task.

    The memory model predicts from earlier launches what a launch should use. `on_reading` is
    called with each reading of memory, from a thread.
    """

    def expected_slots(candidate: Candidate) -> ExpectedSlots | None:
        if memory is None or candidate == task.baseline:
            return None  # a user's own command is launched unchanged, with its own slots
        return memory.expected_slots(candidate)

    size_mib = task.inventory.total_bytes / MIB
    return Launcher(
        runtime=task.runtime,
        model_path=task.model_path,
        workload=task.workload,
        prompts=PromptSource(read_prompt_text(task.workload)),
        memory=_memory_source(task),
        rpc=task.rpc,
        extra_args=task.extra_args,
        env=task.env,
        wrapper=task.wrapper,
        baseline_args=task.baseline_args,
        limits=Limits(load_s=_LEAST_LOAD_LIMIT_S + size_mib / _SLOWEST_READ_MIB_S),
        units=task.inventory.units,
        limits_mib=task.limits_mib,
        headroom_mib=lambda candidate: {} if candidate == task.baseline else task.headroom_mib,
        unreported_mib=memory.unreported_mib if memory else lambda _: {},
        expected_slots=expected_slots,
        on_reading=on_reading,
        find_memory=partial(_memory_source, task),
        check_files=UnchangedFiles(task.inventory.files, task.runtime).check,
    )


def plan_launch(
    task: Task, candidate: Candidate, *, purpose: Purpose
) -> LaunchPlan | UnsupportedSetting:
    """Return a candidate's command for a purpose, or the setting that the runtime lacks."""
    own_args = task.baseline_args if purpose == "baseline" else ()
    return make_launch_plan(
        task.runtime,
        task.model_path,
        candidate,
        purpose=purpose,
        rpc=task.rpc,
        extra_args=(*own_args, *task.extra_args),
        env=task.env,
        wrapper=task.wrapper,
    )


def make_planner(task: Task) -> RuntimePlanner | None:
    """Return the runtime's own planner, or None if it has none or a device is missing."""
    present = {device.name for device in task.runtime.devices or ()}
    if not task.devices or not present >= {device.name for device in task.devices}:
        return None
    planner = RuntimePlanner(
        task.runtime,
        task.model_path,
        rpc=task.rpc,
        extra_args=task.extra_args,
    )
    return planner if planner.command else None


def _memory_source(task: Task, pci_ids: Mapping[str, str] | None = None) -> DeviceSource:
    """Return the memory counters of the task's devices. `pci_ids` come from a server's log."""
    return _device_counters(task.devices, task.runtime, task.env, pci_ids)


def _device_counters(
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


def with_machine_facts(
    listed: Sequence[Device], runtime: Runtime, env: Mapping[str, str]
) -> tuple[Device, ...]:
    """Return the devices with their links, and the memory that is free without the runtime.

    A CUDA or ROCm runtime lists about 500 MiB less, because its own driver context already uses
    them. Predictions count that context as used, so it must be part of the free memory.
    """
    counters = _device_counters(listed, runtime, env).read()
    devices = []
    for device in with_gpu_facts(listed, env=scrubbed_environment(env)):
        counted_mib = counters.get(device.name, UNKNOWN).free_mib
        own_mib = context_mib(device.name) if opens_context_to_list(device.name) else 0.0
        free_mib = device.usable_mib + own_mib if counted_mib is None else counted_mib
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
    """Return the header of a study of the task; secrets in `argv` are hidden."""
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
        environment=read_environment(task),
        seed=seed,
        argv=redact_command(argv, task.runtime.help),
        options=options,
    )


def shown_conditions(task: Task) -> dict[str, Any]:
    """Return the arguments, variables and wrapper of a task without secrets, as JSON data."""
    given = (*task.baseline_args, *task.extra_args)
    return {
        "args": list(redact_arguments(given, task.runtime.help)),
        "env": redact_variables(task.env),
        "wrapper": list(redact_wrapper(task.wrapper)),
    }


def search_header(
    task: Task, options: TaskOptions, *, seed: int, argv: Sequence[str]
) -> StudyHeader:
    """Return the header of a study of the task's search space."""
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
            "env": redact_variables(task.env),
            "wrapper": list(redact_wrapper(task.wrapper)),
            "kv_floor": options.kv_floor,
            "headroom_mib": options.headroom_mib,
            "extra_args": list(redact_arguments(options.extra_args, task.runtime.help)),
            "baseline": {
                "params": dict(task.baseline.params),
                "args": list(redact_arguments(task.baseline_args, task.runtime.help)),
            },
            **_dialect_file(task.runtime.dialect),
        },
    )


def _dialect_file(dialect: Dialect) -> dict[str, str]:
    """Return the file of a user's dialect, which may not be found by its name later."""
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


def read_environment(task: Task) -> Environment:
    """Return the facts about machine, build and model on which a result depends."""
    runtime = task.runtime
    version_lines = runtime.version.text.splitlines()
    return Environment(
        cpu=cpu_name(),
        cpu_count=task.cores.logical,
        memory_mib=psutil.virtual_memory().total / MIB,
        devices=tuple(
            f"{device.name}: {device.description}, {device.total_mib:.0f} MiB"
            for device in task.devices
        ),
        links=tuple(
            f"{device.name}: {device.link_gb_s:g} GB/s"
            for device in task.devices
            if device.link_gb_s is not None
        ),
        driver=nvidia_driver(),
        build=f"{version_lines[0] if version_lines else ''} [{runtime.fingerprint}]",
        model_digest=file_digest(task.inventory.files),
        system=platform.platform(),
    )


def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()
