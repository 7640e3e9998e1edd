"""What about the graphics cards keeps a runtime from using them, or from their full speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from autofit.doctor.finding import Finding
from autofit.machine.gpu import GpuState, normal_pci_id
from autofit.machine.pcie import Card
from autofit.machine.system_limits import closed_files

_RENDER_FILES = ("/dev/kfd", "/dev/dri/renderD*")
# A card that is handed to a virtual machine is not ours.
_HANDED_ON = {"vfio-pci", "xen-pciback"}
_MODULES = {"amd": "amdgpu", "intel": "xe"}
_BUSY_PERCENT = 10
_WATT = 1.0  # drivers round


def check_cards(
    cards: Sequence[Card], states: Sequence[GpuState], root: Path = Path("/")
) -> Iterator[Finding]:
    """Findings on the cards of the bus; `states` are what NVML tells of NVIDIA's."""
    ours = [card for card in cards if card.driver not in _HANDED_ON]
    answering = {state.pci_id for state in states}
    for card in ours:
        if card.vendor == "nvidia" and normal_pci_id(card.pci_id) not in answering:
            yield _silent_nvidia(card)
        elif card.vendor != "nvidia" and card.driver is None:
            yield Finding(
                "warning",
                "no_driver",
                f"the {card.vendor.upper()} card {card.pci_id} has no driver",
                f"sudo modprobe {_MODULES[card.vendor]}",
            )
    yield from _files(ours, root)
    for state in states:
        yield from _state(state)
    for card in ours:
        yield from _card(card)


def _silent_nvidia(card: Card) -> Finding:
    if card.driver == "nvidia":
        return Finding(
            "warning",
            "driver_silent",
            f"the driver of the NVIDIA card {card.pci_id} does not answer here",
            "nvidia-smi    # tells why; in a container: docker run --gpus all",
        )
    return Finding(
        "warning",
        "no_driver",
        f"the NVIDIA card {card.pci_id} has "
        + (f"the driver {card.driver}, which cannot compute" if card.driver else "no driver"),
        "sudo ubuntu-drivers install, or sudo apt install nvidia-driver; then reboot",
    )


def _files(cards: Sequence[Card], root: Path) -> Iterator[Finding]:
    if not any(card.vendor in _MODULES and card.driver for card in cards):
        return
    closed = closed_files(_RENDER_FILES, root)
    if closed:
        yield Finding(
            "warning",
            "device_files_closed",
            f"this user may not open {', '.join(str(path) for path in closed)}",
            'sudo usermod -aG render,video "$USER"    # then log in again',
        )
    elif not any((root / "dev/dri").glob("renderD*")):
        yield Finding(
            "warning",
            "device_files_missing",
            "there is no /dev/dri/renderD*: no runtime can reach the GPU",
            "docker run --device /dev/dri --device /dev/kfd",
        )


def _state(state: GpuState) -> Iterator[Finding]:
    name = f"{state.name} ({state.pci_id})"
    if state.throttled_by:
        yield Finding(
            "warning",
            "throttled",
            f"{name} is slowed down by {' and '.join(state.throttled_by)}",
            f"nvidia-smi -i {state.pci_id} -q -d PERFORMANCE,TEMPERATURE,POWER    # tells more",
        )
    if state.busy_percent is not None and state.busy_percent > _BUSY_PERCENT:
        yield Finding(
            "warning",
            "busy_gpu",
            f"other programs keep {name} busy ({state.busy_percent}%)",
            "nvidia-smi    # shows which; stop them while a tune runs",
        )
    if _is_capped(state.power_cap_w, state.default_power_cap_w):
        yield Finding(
            "note",
            "power_cap",
            f"{name} may draw {state.power_cap_w:.0f} of {state.default_power_cap_w:.0f} W",
            f"sudo nvidia-smi -i {state.pci_id} -pl {state.default_power_cap_w:.0f}",
        )


def _card(card: Card) -> Iterator[Finding]:
    if card.link is not None and card.link.is_narrow:
        yield Finding(
            "warning",
            "narrow_link",
            f"the link to {card.pci_id} has {card.link.lanes} of {card.link.possible} lanes: "
            "experts in system RAM are uploaded that much slower",
            f"sudo lspci -vv -s {card.pci_id} | grep Lnk    # then reseat the card, or give its "
            "slot all lanes in the firmware's setup",
        )
    if card.vendor != "nvidia" and _is_capped(card.power_cap_w, card.default_power_cap_w):
        watts = card.default_power_cap_w or 0.0
        yield Finding(
            "note",
            "power_cap",
            f"{card.pci_id} may draw {card.power_cap_w:.0f} of {watts:.0f} W",
            f"echo {watts * 1e6:.0f} | sudo tee "
            f"/sys/bus/pci/devices/{card.pci_id}/hwmon/hwmon*/power1_cap",
        )


def _is_capped(cap_w: float | None, default_w: float | None) -> bool:
    return cap_w is not None and default_w is not None and cap_w < default_w - _WATT
