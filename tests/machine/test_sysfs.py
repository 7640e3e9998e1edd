"""AMD and Intel GPUs in /sys."""

from __future__ import annotations

from pathlib import Path

from autofit.machine.device_source import find_device_source
from autofit.machine.gpu import Gpu
from autofit.machine.memory_watcher import Counter
from autofit.machine.sysfs import kfd_order, sysfs_gpus
from autofit.trial.device import Device

MIB = 1 << 20


def card(root: Path, number: int, pci_id: str, vendor: str, **mib: int) -> None:
    """A graphics card with its memory files."""
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


def kfd_node(root: Path, number: int, simds: int, location: int) -> None:
    """A node of ROCm's topology."""
    folder = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
    folder.mkdir(parents=True)
    (folder / "properties").write_text(
        f"cpu_cores_count 0\nsimd_count {simds}\nlocation_id {location}\ndomain 0\n"
    )


def test_gpus_are_in_order_of_the_bus(tmp_path: Path):
    """Cards are counted by their place on the bus, whatever number the system gave them."""
    card(tmp_path, 0, "0000:43:00.0", "0x1002", vram_total=16384, vram_used=1)
    card(tmp_path, 1, "0000:03:00.0", "0x1002", vram_total=8192, vram_used=1)
    card(tmp_path, 2, "0000:00:02.0", "0x8086")
    card(tmp_path, 3, "0000:05:00.0", "0x10de")

    assert sysfs_gpus(tmp_path) == (
        Gpu("intel", 0, "0000:00:02.0"),
        Gpu("amd", 0, "0000:03:00.0", total_mib=8192),
        Gpu("amd", 1, "0000:43:00.0", total_mib=16384),
    )
    assert sysfs_gpus(tmp_path / "none") == ()


def test_rocm_order_is_that_of_its_nodes(tmp_path: Path):
    """ROCm counts its topology nodes, CPUs left out, and 10 comes after 2."""
    kfd_node(tmp_path, 0, 0, 0)
    kfd_node(tmp_path, 10, 256, 0x0300)
    kfd_node(tmp_path, 2, 256, 0x4300)

    assert kfd_order(tmp_path) == ("0000:43:00.0", "0000:03:00.0")
    assert kfd_order(tmp_path / "none") == ()


def test_memory_of_amd_cards_by_the_runtimes_names(tmp_path: Path):
    """Each ROCm device gets its own card's counters, and host memory that the card uses."""
    card(
        tmp_path, 0, "0000:43:00.0", "0x1002",
        vram_total=100, vram_used=30, gtt_total=50, gtt_used=7,
    )  # fmt: skip
    card(
        tmp_path, 1, "0000:03:00.0", "0x1002",
        vram_total=200, vram_used=20, gtt_total=50, gtt_used=0,
    )  # fmt: skip
    kfd_node(tmp_path, 1, 256, 0x4300)
    kfd_node(tmp_path, 2, 256, 0x0300)
    devices = [Device("ROCm0", "AMD", 100, 100), Device("ROCm1", "AMD", 200, 200)]

    source = find_device_source(devices, env={}, root=tmp_path)

    assert source.read() == {
        "ROCm0": Counter(30, 70),
        "ROCm0.gtt": Counter(7, 43),
        "ROCm1": Counter(20, 180),
        "ROCm1.gtt": Counter(0, 50),
    }


def test_unified_memory_counts_both_parts(tmp_path: Path):
    """On an APU the small carved-out part and the host's memory are one device."""
    card(
        tmp_path, 0, "0000:c4:00.0", "0x1002",
        vram_total=512, vram_used=100, gtt_total=60000, gtt_used=20000,
    )  # fmt: skip
    device = Device("Vulkan0", "AMD Radeon 8060S (RADV GFX1151)", 60512, 40000, is_unified=True)

    source = find_device_source([device], env={}, root=tmp_path)

    assert source.read() == {"Vulkan0": Counter(20100, 40412)}


def test_device_without_counter_is_unknown(tmp_path: Path):
    """A device that no source knows is told as unknown."""
    source = find_device_source([Device("Metal", "Apple", 1, 1)], env={}, root=tmp_path)

    assert source.read() == {"Metal": Counter(None, None)}


def test_word_of_the_memory_command_wins(tmp_path: Path):
    """A dialect's own program overrides what the system says, and may fail alone."""
    card(tmp_path, 0, "0000:03:00.0", "0x1002", vram_total=100, vram_used=30)
    devices = [Device("Vulkan0", "AMD Radeon (RADV)", 100, 100), Device("X", "", 1, 1)]
    env = {"PATH": "/usr/bin:/bin"}

    told = find_device_source(devices, env=env, root=tmp_path, memory_command=["echo", "X 10 4 6"])
    failing = find_device_source(devices, env=env, root=tmp_path, memory_command=["false"])

    assert told.read() == {"Vulkan0": Counter(30, 70), "X": Counter(6, 4)}
    assert failing.read() == {"Vulkan0": Counter(30, 70), "X": Counter(None, None)}
    assert "memory command" in failing.failure
