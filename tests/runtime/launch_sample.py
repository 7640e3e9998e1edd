"""A launch of a candidate on a simulated machine, with real processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fakes.machine import Device, Host, Machine
from fakes.machine_fixtures import FakeMachine
from fakes.model import Model
from fakes.synthetic_model import ModelShape, build_model

from autofit.machine.device_source import find_device_source
from autofit.process.environment import scrubbed_environment
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.program_inspector import list_devices
from autofit.runtime.server.launcher import Launcher, LaunchResult
from autofit.runtime.server.request_plan import plan_fit_test
from autofit.runtime.server.send_requests import PromptSource, read_prompt_text
from autofit.trial.candidate import Candidate, LaunchPlan, Limits
from autofit.trial.workload import Request, Workload

WORKLOAD = Workload("sample", context=4096, parallel=1, requests=(Request(600, 8),))
CARD = Device(
    "CUDA0", "NVIDIA GeForce RTX 3060", total_mib=2400, context_mib=300, pool_mib=60, reserve_mib=0
)
HOST = Host(ram_mib=24000, other_mib=1000)


def small_model() -> Model:
    """Return a model of 12 layers with 108 MiB of experts each."""
    shape = ModelShape(layers=12, experts=64, used=4, embd=1024, ff=1024, vocab=512)
    return build_model(shape)


def machine(**fields) -> Machine:
    """Return a machine with one card, without noise."""
    return Machine("one", (CARD,), HOST, **fields).without_noise()


def launcher(fake: FakeMachine, *, limits: Limits = Limits(), **fields) -> Launcher:  # noqa: B008
    """Return a launcher on a simulated machine."""
    runtime = find_runtime(str(fake.server), str(fake.dialect))
    devices = list_devices(runtime) or ()
    return Launcher(
        runtime=runtime.with_devices(devices),
        model_path=fake.write_model(small_model()),
        workload=WORKLOAD,
        prompts=PromptSource(read_prompt_text(WORKLOAD)),
        memory=find_device_source(
            devices,
            env=scrubbed_environment({}),
            memory_command=runtime.dialect.memory_command or (),
        ),
        limits=limits,
        **fields,
    )


def launch(made: Launcher, log_path: Path, params: Mapping | None = None) -> LaunchResult:
    """Launch a candidate with a test of fit."""
    candidate = Candidate(
        {"devices": "CUDA0", "n_gpu_layers": 99, "context": 4096, "ubatch": 512, **(params or {})}
    )
    plan = made.plan(candidate, as_served=False)
    assert isinstance(plan, LaunchPlan), plan
    return made.launch(
        plan,
        plan_fit_test(WORKLOAD, 512),
        log_path=log_path,
        on_stage=lambda _: None,
    )
