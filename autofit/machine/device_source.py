"""The memory counters of a runtime's devices, from wherever this machine has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from autofit.machine.command_source import CommandSource
from autofit.machine.fdinfo import FdinfoSource
from autofit.machine.gpu_pairing import pair
from autofit.machine.memory_watcher import UNKNOWN, Counter, MemorySource
from autofit.machine.nvml import NvmlSource, nvidia_gpus
from autofit.machine.rpc import RpcSource, split_endpoint
from autofit.machine.sysfs import AmdHostSource, AmdSource, device_folder, kfd_order, sysfs_gpus
from autofit.trial.device import Device


class DeviceSource:
    """Several sources as one; a source that fails costs only its own devices."""

    def __init__(self, names: Sequence[str], sources: Sequence[MemorySource]) -> None:
        """`names` are all devices, so that one without a counter is told as unknown."""
        self._names = tuple(names)
        self._sources = tuple(sources)
        self.failure: str | None = None  # the last one

    def read(self) -> dict[str, Counter]:
        """The counters of all devices now."""
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

    `env` is the runtime's environment (it chooses devices), `pci_ids` PCI addresses by device
    name where its log told them, `memory_command` a dialect's own program, whose word wins.
    A discrete AMD device `X` has a second counter `X.gtt`, the host memory that it uses.
    """
    names = [device.name for device in devices]
    gpus = (*nvidia_gpus(), *sysfs_gpus(root))
    paired = pair(devices, gpus, env=env, pci_ids=pci_ids, rocm_order=kfd_order(root))
    nvidia = {name: gpu.index for name, gpu in paired.items() if gpu.vendor == "nvidia"}
    amd = {
        name: device_folder(gpu.pci_id, root)
        for name, gpu in paired.items()
        if gpu.vendor == "amd"
    }
    intel = {name: gpu.pci_id for name, gpu in paired.items() if gpu.vendor == "intel"}
    # llama.cpp describes a remote device by its server's address.
    remote = {d.name: d.description for d in devices if split_endpoint(d.description)}
    unified = frozenset(device.name for device in devices if device.is_unified)
    sources: list[MemorySource] = []
    if nvidia:
        sources.append(NvmlSource(nvidia))
    if amd:
        discrete = {name: folder for name, folder in amd.items() if name not in unified}
        sources += [AmdSource(amd, unified), AmdHostSource(discrete)]
    if intel:
        sources.append(FdinfoSource(intel, root=root))
    if remote:
        sources.append(RpcSource(remote))
    if memory_command:
        sources.append(CommandSource(memory_command, env=env))
    return DeviceSource(names, sources)
