"""Findings on a runtime: what it lacks, and settings that change it from outside."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autofit.doctor.machine_findings import Finding
from autofit.machine.gpu import Vendor
from autofit.process.environment import (
    SYSTEM_CONFIG,
    removed_variables,
    system_config,
    user_config,
)
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.trial.device import Device

_BACKENDS: Mapping[Vendor, str] = {"nvidia": "CUDA", "amd": "HIP", "intel": "VULKAN"}
# Variables that hide devices.
_HIDING_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES",
)
# Drivers and desktops use a little of every device.
_USUAL_USE_SHARE = 0.1


def check_runtime(
    runtime: Runtime,
    devices: Sequence[Device] | None,
    vendors: Sequence[Vendor],
    environ: Mapping[str, str],
) -> Iterator[Finding]:
    """Yield findings on a runtime that starts; `vendors` are those of the usable cards."""
    local = [device for device in devices or () if not device.name.startswith("RPC")]
    if devices is None:
        yield Finding(
            "note",
            "devices_not_listed",
            f"{runtime.name} cannot list its devices: a tune uses the CPU only",
            "use a llama-server that answers --list-devices",
        )
    elif vendors and not local:
        hiding = [name for name in _HIDING_VARIABLES if name in environ]
        yield _hidden_devices(hiding) if hiding else _no_gpu_build(runtime, vendors)
    for device in local:
        if device.usable_mib < (1 - _USUAL_USE_SHARE) * device.total_mib:
            yield Finding(
                "note",
                "device_memory_in_use",
                f"other programs use {device.total_mib - device.usable_mib:,.0f} MiB of "
                f"{device.name}: a tune uses the rest",
                "nvidia-smi, rocm-smi or intel_gpu_top    # shows which programs",
            )
    yield from _check_planner(runtime)


def _hidden_devices(names: Sequence[str]) -> Finding:
    return Finding(
        "warning",
        "devices_hidden",
        f"this machine has a GPU, but no device is listed; {', '.join(names)} may hide it",
        f"unset {' '.join(names)}",
    )


def _no_gpu_build(runtime: Runtime, vendors: Sequence[Vendor]) -> Finding:
    backend = _BACKENDS[vendors[0]]
    return Finding(
        "warning",
        "no_gpu_build",
        f"this machine has a GPU ({', '.join(vendors)}), but {runtime.name} lists no device: "
        "a tune would use the CPU alone",
        f"cmake -B build -DGGML_{backend}=ON && cmake --build build -j    # in llama.cpp's "
        "checkout, then --runtime build/bin; or pip install 'llama-autofit[vulkan]'",
    )


def _check_planner(runtime: Runtime) -> Iterator[Finding]:
    rules = runtime.dialect.estimator
    if rules is None or rules.companion in runtime.companions:
        return
    name = runtime.dialect.companions[rules.companion]
    yield Finding(
        "note",
        "no_estimator",
        f"{name} is not in the folder of {runtime.program}: memory estimates are less exact, "
        "which costs launches",
        f"cmake --build build --target {name}    # of the same build, into the same folder",
    )


def check_settings(
    runtime: Runtime | None, environ: Mapping[str, str], system: Path = SYSTEM_CONFIG
) -> Iterator[Finding]:
    """Yield findings on variables and files that set llama.cpp's defaults."""
    config = system_config(system)
    if config is not None:
        yield Finding(
            "warning",
            "system_config",
            f"{config} changes the runtime's defaults, in measurements too",
            f"sudo mv {config} {config}.off",
        )
    own = user_config(environ)
    if own is not None:
        yield Finding(
            "note",
            "user_config",
            f"{own} changes a server that you start, but not one that a tune starts",
            f"mv {shlex.quote(str(own))} {shlex.quote(str(own) + '.off')}",
        )
    variables = runtime.dialect.variables if runtime else frozenset()
    removed = removed_variables({}, environ=environ, also_remove=variables)
    if removed:
        yield Finding(
            "note",
            "variables_set",
            f"set here, but not passed to the servers of a tune: {', '.join(removed)}",
            f"unset {shlex.join(removed)}    # or give a tune --env NAME=VALUE",
        )
