"""Links of devices, from the files of Linux."""

from __future__ import annotations

from pathlib import Path

from autofit.machine.device_source import with_gpu_facts
from autofit.trial.device import Device


def card(root: Path, number: int, pci_id: str, speed: str) -> None:
    """Add an AMD card with 8 GiB and a link of 16 lanes."""
    folder = root / "sys/devices/pci0000:00" / pci_id
    folder.mkdir(parents=True)
    for name, text in {
        "vendor": "0x1002",
        "class": "0x030000",
        "uevent": f"PCI_SLOT_NAME={pci_id}",
        "mem_info_vram_total": str(8 << 30),
        "current_link_width": "16",
        "max_link_width": "16",
        "max_link_speed": f"{speed} GT/s PCIe",
    }.items():
        (folder / name).write_text(text + "\n")
    for link in (f"sys/bus/pci/devices/{pci_id}", f"sys/class/drm/card{number}/device"):
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(folder)


def test_a_device_gets_the_link_of_its_card(tmp_path):
    """A device that could be several cards, or none, has no link."""
    card(tmp_path, 0, "0000:03:00.0", "16.0")
    device = Device("Vulkan0", "AMD Radeon RX 6600 (RADV NAVI23)", 8192, 8000)

    (found,) = with_gpu_facts([device], env={}, root=tmp_path)
    card(tmp_path, 1, "0000:04:00.0", "8.0")
    (ambiguous,) = with_gpu_facts([device], env={}, root=tmp_path)

    assert found.link_gb_s is not None
    assert 22 < found.link_gb_s < 31.5
    assert ambiguous.link_gb_s is None
    assert with_gpu_facts([device], env={}, root=tmp_path / "nowhere") == (device,)


def test_a_card_with_a_connected_screen(tmp_path):
    """One connected connector is enough."""
    card(tmp_path, 0, "0000:03:00.0", "16.0")
    device = Device("Vulkan0", "AMD Radeon RX 6600 (RADV NAVI23)", 8192, 8000)
    found = {}
    for connector, status in (("HDMI-A-1", "disconnected"), ("DP-1", "connected")):
        folder = tmp_path / f"sys/class/drm/card0-{connector}"
        folder.mkdir()
        (folder / "status").write_text(f"{status}\n")
        (found[status],) = with_gpu_facts([device], env={}, root=tmp_path)

    assert not found["disconnected"].has_display
    assert found["connected"].has_display
