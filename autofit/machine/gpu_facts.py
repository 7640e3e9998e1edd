"""The link, the compute capability and the screen of each device, where they can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autofit.machine.gpu import Gpu
from autofit.machine.gpu_pairing import pair_gpus
from autofit.machine.linux_gpus import cards_with_screens, find_cards, find_linux_gpus, rocm_order
from autofit.machine.nvml import (
    find_nvidia_gpus,
    nvidia_capability,
    nvidia_has_screen,
    nvidia_link_gb_s,
)
from autofit.trial.device import Device


def with_gpu_facts(
    devices: Sequence[Device], *, env: Mapping[str, str], root: Path = Path("/")
) -> tuple[Device, ...]:
    """Return the devices with their links, compute capabilities and screens.

    Args:
        devices: those of the runtime.
        env: environment of the runtime, which selects GPUs.
        root: the folder to use as `/`.
    """
    gpus = (*find_nvidia_gpus(), *find_linux_gpus(root))
    paired = pair_gpus(devices, gpus, env=env, rocm_order=rocm_order(root))
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
