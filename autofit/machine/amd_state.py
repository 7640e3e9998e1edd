"""What AMD GPUs do now, as the amdgpu driver tells it in its hwmon folder."""

from __future__ import annotations

import re
from pathlib import Path

from autofit.machine.gpu import GpuState
from autofit.machine.sysfs import device_folder, sysfs_gpus

# A level of pp_dpm_sclk: `1: 1800Mhz *`, the star at the one in use.
_LEVEL = re.compile(r"^\d+: (\d+)Mhz", re.MULTILINE | re.IGNORECASE)


def amd_states(root: Path = Path("/")) -> tuple[GpuState, ...]:
    """What each AMD GPU does now; why one is slowed down the driver does not say."""
    return tuple(
        _state(gpu.pci_id, device_folder(gpu.pci_id, root))
        for gpu in sysfs_gpus(root)
        if gpu.vendor == "amd"
    )


def _state(pci_id: str, device: Path) -> GpuState:
    sensors = next(iter(sorted(device.glob("hwmon/hwmon*"))), device / "hwmon")
    hertz = _number(sensors / "freq1_input")
    degrees = [_number(path) for path in sensors.glob("temp*_input")]  # edge, junction, memory
    hottest = max((degree for degree in degrees if degree is not None), default=None)
    microwatts = _number(sensors / "power1_average") or _number(sensors / "power1_input")
    cap = _number(sensors / "power1_cap")
    levels = [int(mhz) for mhz in _LEVEL.findall(_read(device / "pp_dpm_sclk"))]
    return GpuState(
        _read(device / "product_name") or "AMD GPU",
        pci_id,
        clock_mhz=None if hertz is None else hertz // 1_000_000,
        max_clock_mhz=max(levels, default=None),
        temperature_c=None if hottest is None else hottest // 1000,
        power_w=None if microwatts is None else microwatts / 1e6,
        power_cap_w=None if cap is None else cap / 1e6,
        busy_percent=_number(device / "gpu_busy_percent"),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # a sensor of a sleeping device may refuse
        return ""


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None
