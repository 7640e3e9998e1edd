"""Clocks, heat and power of AMD GPUs from the driver's files."""

from __future__ import annotations

from pathlib import Path

from autofit.machine.amd_state import amd_states


def write(path: Path, text: str) -> None:
    """A file of the driver."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def add_card(root: Path, number: int, pci_id: str, vendor: str = "0x1002") -> Path:
    """A card as the kernel lists it; the folder of its device."""
    device = root / "sys/bus/pci/devices" / pci_id
    write(device / "vendor", vendor)
    write(device / "uevent", f"PCI_SLOT_NAME={pci_id}")
    card = root / f"sys/class/drm/card{number}"
    card.mkdir(parents=True)
    (card / "device").symlink_to(device)
    return device


def test_what_the_driver_tells_is_read(tmp_path: Path):
    """The hottest sensor counts, and units are those of the names."""
    device = add_card(tmp_path, 1, "0000:03:00.0")
    write(device / "pp_dpm_sclk", "0: 500Mhz\n1: 1800Mhz *\n2: 2450Mhz")
    write(device / "gpu_busy_percent", "97")
    write(device / "hwmon/hwmon4/freq1_input", "1812000000")
    write(device / "hwmon/hwmon4/temp1_input", "66000")
    write(device / "hwmon/hwmon4/temp2_input", "84000")
    write(device / "hwmon/hwmon4/power1_average", "190000000")
    write(device / "hwmon/hwmon4/power1_cap", "203000000")

    (state,) = amd_states(tmp_path)

    assert (state.name, state.pci_id) == ("AMD GPU", "0000:03:00.0")
    assert (state.clock_mhz, state.max_clock_mhz, state.temperature_c) == (1812, 2450, 84)
    assert (state.power_w, state.power_cap_w, state.busy_percent) == (190.0, 203.0, 97)


def test_what_is_not_told_is_unknown(tmp_path: Path):
    """A card without sensors has no zeros, and other vendors' cards are not AMD's."""
    add_card(tmp_path, 0, "0000:03:00.0")
    add_card(tmp_path, 1, "0000:04:00.0", vendor="0x8086")

    (state,) = amd_states(tmp_path)

    assert (state.clock_mhz, state.temperature_c, state.power_w) == (None, None, None)
    assert amd_states(tmp_path / "elsewhere") == ()
