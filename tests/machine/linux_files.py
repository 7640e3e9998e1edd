"""Files below /sys of graphics cards, for tests."""

from __future__ import annotations

from pathlib import Path

from autofit.units import MIB


def add_card(root: Path, number: int, pci_id: str, vendor: str, **mib: int) -> Path:
    """Add a graphics card with its memory files; return the folder of its device."""
    device = root / "sys/bus/pci/devices" / pci_id
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")
    (device / "uevent").write_text(f"DRIVER=amdgpu\nPCI_SLOT_NAME={pci_id}\n")
    for name, value in mib.items():
        (device / f"mem_info_{name}").write_text(f"{value * MIB}\n")
    folder = root / "sys/class/drm" / f"card{number}"
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(device)
    (folder.parent / f"card{number}-DP-1").mkdir()
    return device


def add_kfd_node(root: Path, number: int, simds: int, location: int) -> None:
    """Add a node of ROCm's topology."""
    folder = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
    folder.mkdir(parents=True)
    (folder / "properties").write_text(
        f"cpu_cores_count 0\nsimd_count {simds}\nlocation_id {location}\ndomain 0\n"
    )
