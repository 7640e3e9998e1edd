"""NVIDIA GPUs through NVML; the only module that knows pynvml.

Everywhere else in the world there is no NVML: then there are no GPUs, found out in
milliseconds and without an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from autofit.machine.gpu import Gpu, GpuState, normal_pci_id
from autofit.machine.memory_watcher import UNKNOWN, Counter
from autofit.units import MIB

# Names of the bits of nvmlClocksEventReasons, from NVML's header; bit 0 is idleness.
THROTTLE_REASONS = {
    0x002: "application clocks",
    0x004: "power limit",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "temperature (software)",
    0x040: "temperature (hardware)",
    0x080: "power brake",
    0x100: "display clocks",
}


@functools.cache
def _nvml() -> Any | None:  # noqa: ANN401 - pynvml has no types
    try:
        import pynvml  # noqa: PLC0415 - costs 0.04 s and is seldom of use
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _ask(question: Callable[..., Any], *arguments: object) -> Any | None:  # noqa: ANN401
    """An answer of NVML; None where this GPU, driver or user has none."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _handle(index: int) -> Any | None:  # noqa: ANN401
    nvml = _nvml()
    return None if nvml is None else _ask(nvml.nvmlDeviceGetHandleByIndex, index)


def _memory(handle: object) -> Counter:
    nvml = _nvml()
    memory = None if nvml is None else _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    if memory is None:
        return UNKNOWN  # unified memory, for one
    return Counter((memory.total - memory.free) / MIB, memory.free / MIB)


def nvidia_gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs in NVML's order, which is that of the bus."""
    nvml = _nvml()
    count = _ask(nvml.nvmlDeviceGetCount) if nvml else 0
    found = []
    for index in range(count or 0):
        handle = _handle(index)
        if nvml is None or handle is None:
            continue
        pci = _ask(nvml.nvmlDeviceGetPciInfo, handle)
        memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        found.append(
            Gpu(
                "nvidia",
                index,
                normal_pci_id(_text(pci.busId)) if pci else "",
                _text(_ask(nvml.nvmlDeviceGetName, handle)),
                memory.total / MIB if memory else None,
                _text(_ask(nvml.nvmlDeviceGetUUID, handle)),
            )
        )
    return tuple(found)


class NvmlSource:
    """Memory of NVIDIA GPUs, by the runtime's names."""

    def __init__(self, indices: Mapping[str, int]) -> None:
        """`indices` are NVML's, by the runtime's name of the device."""
        self._handles = {name: _handle(index) for name, index in indices.items()}

    def read(self) -> dict[str, Counter]:
        """Used and free memory now."""
        return {
            name: _memory(handle) if handle is not None else UNKNOWN
            for name, handle in self._handles.items()
        }


def nvidia_states() -> tuple[GpuState, ...]:
    """What each NVIDIA GPU does now."""
    return tuple(_state(gpu) for gpu in nvidia_gpus())


def _state(gpu: Gpu) -> GpuState:
    nvml, handle = _nvml(), _handle(gpu.index)
    if nvml is None or handle is None:
        return GpuState(gpu.name, gpu.pci_id)
    reasons = _ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    utilization = _ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    return GpuState(
        gpu.name,
        gpu.pci_id,
        clock_mhz=_ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        max_clock_mhz=_ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        temperature_c=_ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        power_w=_watts(_ask(nvml.nvmlDeviceGetPowerUsage, handle)),
        power_cap_w=_watts(_ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
        default_power_cap_w=_watts(_ask(nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)),
        busy_percent=utilization.gpu if utilization else None,
        pcie_generation=_ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        pcie_width=_ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        throttled_by=tuple(name for bit, name in THROTTLE_REASONS.items() if reasons & bit),
    )


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def nvidia_driver() -> str:
    """The NVIDIA driver's version, empty where there is none."""
    nvml = _nvml()
    version = _text(_ask(nvml.nvmlSystemGetDriverVersion)) if nvml else ""
    return f"NVIDIA {version}" if version else ""
