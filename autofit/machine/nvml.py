"""NVIDIA GPUs, read with NVML; no other module imports pynvml.

Without NVML the list of GPUs is empty, which is no error.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from autofit.machine.gpu import Gpu, GpuState, normal_pci_id, pcie_gb_s
from autofit.machine.memory_counter import UNKNOWN, MemoryCounter
from autofit.units import MIB

# The bits of nvmlClocksEventReasons, from NVML's header; bit 0 is idleness.
_THROTTLE_REASONS = {
    0x002: "application clocks",
    0x004: "power limit",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "temperature (software)",
    0x040: "temperature (hardware)",
    0x080: "power brake",
    0x100: "display clocks",
}
_CLOCK_SM = 1  # NVML_CLOCK_SM
_TEMPERATURE_GPU = 0  # NVML_TEMPERATURE_GPU
_MOST_GPUS = 256  # of one machine; a larger number is a fault of the driver


@functools.cache
def _nvml() -> Any | None:  # noqa: ANN401 - pynvml has no types
    try:
        import pynvml  # noqa: PLC0415 - costs 0.04 s and is seldom needed
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _ask(function: str, *arguments: object) -> Any | None:  # noqa: ANN401
    """Return the result of a function of NVML, or None if it is not available here."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, UnicodeDecodeError):
        return None


def _ask_text(function: str, *arguments: object) -> str:
    answer = _ask(function, *arguments)
    return answer.decode() if isinstance(answer, bytes) else str(answer or "")


def find_nvidia_gpus() -> tuple[Gpu, ...]:
    """Return the NVIDIA GPUs in NVML's order, which is bus order."""
    found = []
    for index in range(min(_ask("nvmlDeviceGetCount") or 0, _MOST_GPUS)):
        handle = _ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            continue
        memory = _ask("nvmlDeviceGetMemoryInfo", handle)
        found.append(
            Gpu(
                "nvidia",
                index,
                normal_pci_id(_bus_id(handle)),
                _ask_text("nvmlDeviceGetName", handle),
                memory.total / MIB if memory else None,
                _ask_text("nvmlDeviceGetUUID", handle),
            )
        )
    return tuple(found)


def _bus_id(handle: object) -> str:
    pci = _ask("nvmlDeviceGetPciInfo", handle)
    try:
        bus_id = pci.busId if pci else ""
        return bus_id.decode() if isinstance(bus_id, bytes) else bus_id
    except UnicodeDecodeError:
        return ""


class NvidiaMemory:
    """A source of memory counters of NVIDIA GPUs."""

    def __init__(self, indices: Mapping[str, int]) -> None:
        """Open GPUs; `indices` maps the runtime's device names to NVML's indices."""
        self._handles = {
            name: _ask("nvmlDeviceGetHandleByIndex", index) for name, index in indices.items()
        }

    def read(self) -> dict[str, MemoryCounter]:
        """Return used and free memory now."""
        return {name: _read_memory(handle) for name, handle in self._handles.items()}


def _read_memory(handle: object) -> MemoryCounter:
    memory = None if handle is None else _ask("nvmlDeviceGetMemoryInfo", handle)
    if memory is None or memory.free > memory.total:
        return UNKNOWN  # for example unified memory
    return MemoryCounter((memory.total - memory.free) / MIB, memory.free / MIB)


def nvidia_states() -> tuple[GpuState, ...]:
    """Return the state of each NVIDIA GPU."""
    return tuple(_state(gpu) for gpu in find_nvidia_gpus())


def _state(gpu: Gpu) -> GpuState:
    handle = _ask("nvmlDeviceGetHandleByIndex", gpu.index)
    if handle is None:
        return GpuState(gpu.name, gpu.pci_id)
    reasons = _ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    utilization = _ask("nvmlDeviceGetUtilizationRates", handle)
    return GpuState(
        gpu.name,
        gpu.pci_id,
        clock_mhz=_ask("nvmlDeviceGetClockInfo", handle, _CLOCK_SM),
        max_clock_mhz=_ask("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM),
        temperature_c=_ask("nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU),
        power_w=_watts(_ask("nvmlDeviceGetPowerUsage", handle)),
        power_cap_w=_watts(_ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
        default_power_cap_w=_watts(_ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        busy_percent=utilization.gpu if utilization else None,
        throttled_by=tuple(name for bit, name in _THROTTLE_REASONS.items() if reasons & bit),
    )


def nvidia_link_gb_s(index: int) -> float | None:
    """Return the speed of copies over a GPU's link, or None if unknown.

    An idle GPU lowers the generation of its link, so the highest that GPU and slot allow counts.
    """
    handle = _ask("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return None
    lanes = _ask("nvmlDeviceGetCurrPcieLinkWidth", handle)
    return pcie_gb_s(
        lanes or 0, generation=_ask("nvmlDeviceGetMaxPcieLinkGeneration", handle) or 0
    )


def nvidia_has_screen(index: int) -> bool:
    """Return whether a desktop uses a GPU.

    The display mode is not asked for: it is enabled on cards of data centres, which have none.
    """
    handle = _ask("nvmlDeviceGetHandleByIndex", index)
    return handle is not None and bool(_ask("nvmlDeviceGetDisplayActive", handle))


def nvidia_capability(index: int) -> float | None:
    """Return the compute capability of a GPU, such as 8.6, or None if unknown."""
    handle = _ask("nvmlDeviceGetHandleByIndex", index)
    version = None if handle is None else _ask("nvmlDeviceGetCudaComputeCapability", handle)
    return None if version is None else version[0] + version[1] / 10


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def nvidia_driver() -> str:
    """Return the version of the NVIDIA driver, or an empty text if there is none."""
    version = _ask_text("nvmlSystemGetDriverVersion")
    return f"NVIDIA {version}" if version else ""
