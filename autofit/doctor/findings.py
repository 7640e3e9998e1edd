"""Findings on cards, processors, memory and runtimes that prevent or slow down a tune."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autofit.machine.cpu import slow_governors
from autofit.machine.gpu import GpuState, Vendor, normal_pci_id
from autofit.machine.host_load import STEAL_SHARE, HostState, are_cores_busy
from autofit.machine.linux_gpus import Card, closed_device_files
from autofit.machine.process_memory import locked_memory_mib
from autofit.process.environment import (
    SYSTEM_CONFIG,
    removed_variables,
    system_config,
    user_config,
)
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.trial.device import Device

# fatal: a tune would not work; warning: its result suffers; note: good to know.
Level = Literal["fatal", "warning", "note"]

_RENDER_FILES = ("/dev/kfd", "/dev/dri/renderD*")
# A card with one of these drivers belongs to a virtual machine.
_PASSTHROUGH_DRIVERS = {"vfio-pci", "xen-pciback"}
_KERNEL_MODULES = {"amd": "amdgpu", "intel": "xe"}
_BUSY_PERCENT = 10
_WATT = 1.0  # drivers round
# Some pages of idle programs are always in swap.
_USUAL_SWAP_SHARE = 0.01
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


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact that prevents or slows down a tune, and the command that repairs it.

    `kind` is a stable word for programs.
    """

    level: Level
    kind: str
    message: str
    fix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON data."""
        data = {"level": self.level, "kind": self.kind, "message": self.message}
        return {**data, "mend": self.fix}  # wording: quote


def check_cards(
    cards: Sequence[Card], states: Sequence[GpuState], root: Path = Path("/")
) -> Iterator[Finding]:
    """Yield findings on the graphics cards; `states` are NVML's data about NVIDIA's."""
    ours = [card for card in cards if card.driver not in _PASSTHROUGH_DRIVERS]
    answering = {state.pci_id for state in states}
    for card in ours:
        if card.vendor == "nvidia" and normal_pci_id(card.pci_id) not in answering:
            yield _silent_nvidia_driver(card)
        elif card.vendor != "nvidia" and card.driver is None:
            yield Finding(
                "warning",
                "no_driver",
                f"the {card.vendor.upper()} card {card.pci_id} has no driver",
                f"sudo modprobe {_KERNEL_MODULES[card.vendor]}",
            )
    yield from _check_device_files(ours, root)
    for state in states:
        yield from _check_gpu_state(state)
    for card in ours:
        yield from _check_link_and_power(card)


def _silent_nvidia_driver(card: Card) -> Finding:
    if card.driver == "nvidia":
        return Finding(
            "warning",
            "driver_silent",
            f"the driver of the NVIDIA card {card.pci_id} does not answer",
            "nvidia-smi    # shows why; in a container: docker run --gpus all",
        )
    return Finding(
        "warning",
        "no_driver",
        f"the NVIDIA card {card.pci_id} has "
        + (f"the driver {card.driver}, which cannot compute" if card.driver else "no driver"),
        "sudo ubuntu-drivers install, or sudo apt install nvidia-driver; then reboot",
    )


def _check_device_files(cards: Sequence[Card], root: Path) -> Iterator[Finding]:
    if not any(card.vendor in _KERNEL_MODULES and card.driver for card in cards):
        return
    closed = closed_device_files(_RENDER_FILES, root)
    if closed:
        yield Finding(
            "warning",
            "device_files_closed",
            f"this user has no permission to open {', '.join(str(path) for path in closed)}",
            'sudo usermod -aG render,video "$USER"    # then log in again',
        )
    elif not any((root / "dev/dri").glob("renderD*")):
        yield Finding(
            "warning",
            "device_files_missing",
            "there is no /dev/dri/renderD*, so no runtime can reach the GPU",
            "docker run --device /dev/dri --device /dev/kfd",
        )


def _check_gpu_state(state: GpuState) -> Iterator[Finding]:
    name = f"{state.name} ({state.pci_id})"
    if state.throttled_by:
        yield Finding(
            "warning",
            "throttled",
            f"{name} is slowed down by {' and '.join(state.throttled_by)}",
            f"nvidia-smi -i {state.pci_id} -q -d PERFORMANCE,TEMPERATURE,POWER    # shows more",
        )
    if state.busy_percent is not None and state.busy_percent > _BUSY_PERCENT:
        yield Finding(
            "warning",
            "busy_gpu",
            f"other programs use {name} ({state.busy_percent}%)",
            "nvidia-smi    # shows which; tune when they have ended",
        )
    if _is_capped(state.power_cap_w, state.default_power_cap_w):
        yield Finding(
            "note",
            "power_cap",
            f"{name} is limited to {state.power_cap_w:.0f} of {state.default_power_cap_w:.0f} W",
            f"sudo nvidia-smi -i {state.pci_id} -pl {state.default_power_cap_w:.0f}",
        )


def _check_link_and_power(card: Card) -> Iterator[Finding]:
    if card.link is not None and card.link.is_narrow:
        yield Finding(
            "warning",
            "narrow_link",
            f"the link to {card.pci_id} uses {card.link.lanes} of {card.link.possible} lanes, "
            "which slows down the upload of experts from system RAM",
            f"sudo lspci -vv -s {card.pci_id} | grep Lnk    # then reseat the card, or give its "
            "slot all lanes in the firmware's setup",
        )
    if card.vendor != "nvidia" and _is_capped(card.power_cap_w, card.default_power_cap_w):
        watts = card.default_power_cap_w or 0.0
        yield Finding(
            "note",
            "power_cap",
            f"{card.pci_id} is limited to {card.power_cap_w:.0f} of {watts:.0f} W",
            f"echo {watts * 1e6:.0f} | sudo tee "
            f"/sys/bus/pci/devices/{card.pci_id}/hwmon/hwmon*/power1_cap",
        )


def _is_capped(cap_w: float | None, default_w: float | None) -> bool:
    return cap_w is not None and default_w is not None and cap_w < default_w - _WATT


def check_host(state: HostState, root: Path = Path("/")) -> Iterator[Finding]:
    """Yield findings on processors and memory, the more serious ones first."""
    yield from _check_load(state)
    yield from _check_memory(state)
    yield from _check_limits(state, root)


def _check_load(state: HostState) -> Iterator[Finding]:
    logical = state.cores.logical
    if are_cores_busy(state.others_cores, logical):
        yield Finding(
            "warning",
            "busy_host",
            f"other processes use {state.others_cores:.1f} of {logical} cores: "
            "measurements will vary",
            "top -o %CPU    # shows which; `autofit tune --wait` starts when the CPU is idle",
        )
    if state.steal_share > STEAL_SHARE:
        yield Finding(
            "warning",
            "cpu_steal",
            f"the hypervisor gives {state.steal_share:.0%} of the CPU time to others",
            "tune at a quieter time, or on a machine whose cores are not shared",
        )


def _check_memory(state: HostState) -> Iterator[Finding]:
    if state.swap_used_mib > _USUAL_SWAP_SHARE * state.memory_total_mib:
        yield Finding(
            "warning",
            "swap_in_use",
            f"{state.swap_used_mib:,.0f} MiB are in swap: weights in system RAM may follow",
            "sudo swapoff -a && sudo swapon -a    # needs enough free memory",
        )
    limit_mib = state.memory_limit_mib
    if limit_mib is not None and limit_mib < state.memory_total_mib:
        yield Finding(
            "note",
            "memory_limit",
            f"a control group limits memory to {limit_mib:,.0f} of "
            f"{state.memory_total_mib:,.0f} MiB: fewer experts fit in system RAM",
            "docker update --memory SIZE --memory-swap SIZE CONTAINER, or "
            "systemctl set-property UNIT MemoryMax=infinity",
        )


def _check_limits(state: HostState, root: Path) -> Iterator[Finding]:
    cores = state.cores
    if cores.usable < cores.logical:
        yield Finding(
            "note",
            "cpu_limit",
            f"only {cores.usable} of {cores.logical} hardware threads may be used",
            f"docker update --cpus {cores.logical} CONTAINER, or start without taskset",
        )
    governors = slow_governors(root)
    if governors:
        yield Finding(
            "note",
            "cpu_governor",
            f"the CPU governor is {', '.join(governors)}, not performance: "
            "speed depends on what ran before",
            "sudo cpupower frequency-set -g performance",
        )
    locked_mib = locked_memory_mib(root)
    if locked_mib is not None and locked_mib < state.memory_total_mib:
        yield Finding(
            "note",
            "locked_memory",
            f"a process may lock {locked_mib:,.0f} MiB of memory: `load_mode mlock` fails, and "
            "some drivers cannot pin host weights",
            "ulimit -l unlimited (as root), `* - memlock unlimited` in "
            "/etc/security/limits.conf, or docker run --ulimit memlock=-1",
        )


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
            f"unset {shlex.join(removed)}    # or use `autofit tune --env NAME=VALUE`",
        )
