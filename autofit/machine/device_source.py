"""The facts that this machine knows of a runtime's devices: memory counters, links, screens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autofit.errors import AutofitError
from autofit.machine.gpu import Gpu
from autofit.machine.gpu_pairing import pair_gpus
from autofit.machine.linux_gpus import (
    AmdMemory,
    IntelMemory,
    cards_with_screens,
    find_cards,
    find_linux_gpus,
    pci_folder,
    rocm_order,
)
from autofit.machine.memory_counter import UNKNOWN, MemoryCounter, MemorySource
from autofit.machine.nvml import (
    NvidiaMemory,
    find_nvidia_gpus,
    nvidia_capability,
    nvidia_has_screen,
    nvidia_link_gb_s,
)
from autofit.machine.rpc_servers import RpcMemory, split_endpoint
from autofit.process.helper_program import run_to_end
from autofit.trial.device import Device

_COMMAND_TIMEOUT_S = 5.0
_LINE = re.compile(r"^\s*(\S+)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s*$")


class MemoryCommand:
    """A `memory_command`, which prints a line `NAME total free used` in MiB for each device."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str]) -> None:
        self._argv = tuple(argv)
        self._env = dict(env)

    def read(self) -> dict[str, MemoryCounter]:
        """Return the counters that the command prints now; other lines are ignored.

        Raises:
            AutofitError: the command fails, or prints no counter.
        """
        finished = run_to_end(self._argv, env=self._env, timeout_s=_COMMAND_TIMEOUT_S)
        matches = (_LINE.match(line) for line in finished.stdout.splitlines())
        counters = {
            match[1]: MemoryCounter(used_mib=float(match[4]), free_mib=float(match[3]))
            for match in matches
            if match
        }
        if finished.returncode != 0 or not counters:
            reason = (
                f"took longer than {_COMMAND_TIMEOUT_S:.0f} s"
                if finished.timed_out
                else f"ended with {finished.returncode}: {finished.stderr.strip()[-200:]}"
            )
            raise AutofitError(
                f"the memory command {' '.join(self._argv)} {reason}",
                "it must print lines `NAME total free used`, in MiB",
            )
        return counters


class DeviceSource:
    """Several sources combined; a source that fails affects only its own devices."""

    def __init__(self, names: Sequence[str], sources: Sequence[MemorySource]) -> None:
        """Join sources; each device in `names` without a counter is reported as unknown."""
        self._names = tuple(names)
        self._sources = tuple(sources)
        self.failure: str | None = None  # the last one

    def read(self) -> dict[str, MemoryCounter]:
        """Return the counters of all devices now."""
        counters = dict.fromkeys(self._names, UNKNOWN)
        for source in self._sources:
            try:
                counters.update(source.read())
            except Exception as error:  # noqa: BLE001 - the other devices still count
                self.failure = f"{type(error).__name__}: {error}"
        return counters


def find_device_source(
    devices: Sequence[Device],
    *,
    env: Mapping[str, str],
    pci_ids: Mapping[str, str] | None = None,
    memory_command: Sequence[str] = (),
    root: Path = Path("/"),
) -> DeviceSource:
    """Find the memory counters of a runtime's devices.

    `env` is the environment of the runtime, which selects GPUs. `pci_ids` are PCI addresses by
    device name, if the runtime's log has them. The counters of `memory_command`, a program of the
    dialect, replace all others. `root` is the folder to use as `/`.
    """
    paired = _find_gpus(devices, env, root, pci_ids)
    nvidia = {name: gpu.index for name, gpu in paired.items() if gpu.vendor == "nvidia"}
    amd = {n: pci_folder(gpu.pci_id, root) for n, gpu in paired.items() if gpu.vendor == "amd"}
    intel = {name: gpu.pci_id for name, gpu in paired.items() if gpu.vendor == "intel"}
    # llama.cpp describes a remote device by the address of its server.
    remote = {d.name: d.description for d in devices if split_endpoint(d.description)}
    sources: list[MemorySource] = []
    if nvidia:
        sources.append(NvidiaMemory(nvidia))
    if amd:
        sources.append(AmdMemory(amd, frozenset(d.name for d in devices if d.is_unified)))
    if intel:
        sources.append(IntelMemory(intel, root=root))
    if remote:
        sources.append(RpcMemory(remote))
    if memory_command:
        sources.append(MemoryCommand(memory_command, env=env))
    return DeviceSource([device.name for device in devices], sources)


def with_gpu_facts(
    devices: Sequence[Device], *, env: Mapping[str, str], root: Path = Path("/")
) -> tuple[Device, ...]:
    """Return a runtime's devices with their links, compute capabilities and screens.

    `env` is the environment of the runtime, which selects GPUs; `root` is used as `/`.
    """
    paired = _find_gpus(devices, env, root)
    links = {card.pci_id: card.link.gb_s for card in find_cards(root) if card.link}
    screens = cards_with_screens(root)
    return tuple(
        _with_facts(device, paired[device.name], links, screens)
        if device.name in paired
        else device
        for device in devices
    )


def _with_facts(
    device: Device, gpu: Gpu, links: Mapping[str, float | None], screens: frozenset[str]
) -> Device:
    has_display = gpu.pci_id in screens
    link_gb_s, capability = links.get(gpu.pci_id), device.compute_capability
    if gpu.vendor == "nvidia":
        link_gb_s = link_gb_s or nvidia_link_gb_s(gpu.index)
        capability = capability or nvidia_capability(gpu.index)
        has_display = has_display or nvidia_has_screen(gpu.index)
    return replace(
        device, link_gb_s=link_gb_s, compute_capability=capability, has_display=has_display
    )


def _find_gpus(
    devices: Sequence[Device],
    env: Mapping[str, str],
    root: Path,
    pci_ids: Mapping[str, str] | None = None,
) -> dict[str, Gpu]:
    """Map each device to its physical GPU on this machine, if there is only one possible."""
    gpus = (*find_nvidia_gpus(), *find_linux_gpus(root))
    return pair_gpus(devices, gpus, env=env, pci_ids=pci_ids, rocm_order=rocm_order(root))
