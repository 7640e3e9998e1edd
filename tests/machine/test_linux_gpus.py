"""Graphics cards from copies of the files of Linux."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from machine.linux_files import add_card, add_kfd_node

from autofit.machine.gpu import Gpu, pcie_gb_s
from autofit.machine.linux_gpus import (
    Card,
    IntelMemory,
    Link,
    amd_states,
    closed_device_files,
    find_cards,
    find_linux_gpus,
    rocm_order,
)
from autofit.machine.memory_counter import MemoryCounter


def test_gpus_are_in_bus_order(tmp_path: Path):
    """GPUs are counted in bus order, not in the order of their card numbers."""
    add_card(tmp_path, 0, "0000:43:00.0", "0x1002", vram_total=16384, vram_used=1)
    add_card(tmp_path, 1, "0000:03:00.0", "0x1002", vram_total=8192, vram_used=1)
    add_card(tmp_path, 2, "0000:00:02.0", "0x8086")
    add_card(tmp_path, 3, "0000:05:00.0", "0x10de")

    assert find_linux_gpus(tmp_path) == (
        Gpu("intel", 0, "0000:00:02.0"),
        Gpu("amd", 0, "0000:03:00.0", total_mib=8192),
        Gpu("amd", 1, "0000:43:00.0", total_mib=16384),
    )
    assert find_linux_gpus(tmp_path / "none") == ()


def test_rocm_counts_its_nodes(tmp_path: Path):
    """ROCm's order is that of its topology nodes without CPUs, and 10 comes after 2."""
    add_kfd_node(tmp_path, 0, 0, 0)
    add_kfd_node(tmp_path, 10, 256, 0x0300)
    add_kfd_node(tmp_path, 2, 256, 0x4300)

    assert rocm_order(tmp_path) == ("0000:43:00.0", "0000:03:00.0")
    assert rocm_order(tmp_path / "none") == ()


def write(path: Path, text: str) -> None:
    """Write a file of the driver."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_state_of_an_amd_gpu(tmp_path: Path):
    """The hottest sensor counts, and units are converted."""
    device = add_card(tmp_path, 1, "0000:03:00.0", "0x1002")
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


def test_state_without_sensors(tmp_path: Path):
    """Without sensors the state is unknown, and other vendors' cards are left out."""
    add_card(tmp_path, 0, "0000:03:00.0", "0x1002")
    add_card(tmp_path, 1, "0000:04:00.0", "0x8086")

    (state,) = amd_states(tmp_path)

    assert (state.clock_mhz, state.temperature_c, state.power_w) == (None, None, None)
    assert amd_states(tmp_path / "elsewhere") == ()


XE = """pos:\t0
drm-driver:\txe
drm-client-id:\t{client}
drm-pdev:\t{pci_id}
drm-total-vram0:\t9999 KiB
drm-resident-vram0:\t{kib} KiB
drm-resident-gtt:\t4096 KiB
"""


def descriptor(root: Path, pid: int, number: int, text: str, target: str) -> None:
    """Add an open file of a process."""
    for name in ("fd", "fdinfo"):
        (root / "proc" / str(pid) / name).mkdir(parents=True, exist_ok=True)
    (root / "proc" / str(pid) / "fd" / str(number)).symlink_to(target)
    (root / "proc" / str(pid) / "fdinfo" / str(number)).write_text(text)


def test_intel_clients_are_counted_once(tmp_path: Path):
    """Descriptors of one client count once; clients of several processes add up."""
    first = XE.format(client=7, pci_id="0000:03:00.0", kib=2048)
    second = XE.format(client=8, pci_id="0000:03:00.0", kib=1024)
    other = XE.format(client=9, pci_id="0000:04:00.0", kib=512)
    descriptor(tmp_path, 1, 3, first, "/dev/dri/renderD128")
    descriptor(tmp_path, 1, 4, first, "/dev/dri/renderD128")
    descriptor(tmp_path, 1, 5, first, "/etc/passwd")
    descriptor(tmp_path, 2, 3, second, "/dev/dri/renderD128")
    descriptor(tmp_path, 2, 4, other, "/dev/dri/renderD129")

    source = IntelMemory(
        {"SYCL0": "0000:03:00.0", "SYCL1": "0000:04:00.0", "SYCL2": "0000:05:00.0"},
        pids=lambda: [1, 2, 99],
        root=tmp_path,
    )

    assert source.read() == {
        "SYCL0": MemoryCounter(3, None),
        "SYCL1": MemoryCounter(0.5, None),
        "SYCL2": MemoryCounter(None, None),
    }


def test_intel_memory_of_our_descendants():
    """By default the processes that we started are read, without an error."""
    assert IntelMemory({"SYCL0": "0000:03:00.0"}).read() == {"SYCL0": MemoryCounter(None, None)}


DEVICES = "sys/devices/pci0000:00"


def _device(root: Path, path: str, **files: str) -> None:
    """Add a PCI device with its files below `sys/devices/pci0000:00`."""
    folder = root / DEVICES / path
    for name, text in files.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / folder.name).symlink_to(folder)


def _link(current: int, most: int) -> dict[str, str]:
    return {"current_link_width": str(current), "max_link_width": str(most)}


def _drive(root: Path, path: str, driver: str) -> None:
    target = root / "sys/bus/pci/drivers" / driver
    target.mkdir(parents=True, exist_ok=True)
    (root / DEVICES / path / "driver").symlink_to(target)


def test_only_display_controllers_and_accelerators_are_cards(tmp_path):
    """Display controllers and accelerators are cards, with or without a driver; sound is not."""
    _device(tmp_path, "0000:00:02.0", vendor="0x8086", **{"class": "0x030000"})
    _device(tmp_path, "0000:00:06.0", vendor="0x10de", **{"class": "0x030200"}, **_link(16, 16))
    _device(tmp_path, "0000:00:07.0", vendor="0x1002", **{"class": "0x120000"})
    _device(tmp_path, "0000:00:08.0", vendor="0x10de", **{"class": "0x040300"})
    _device(tmp_path, "0000:00:09.0", vendor="0x1234", **{"class": "0x030000"})
    _drive(tmp_path, "0000:00:06.0", "nvidia")

    assert find_cards(tmp_path) == (
        Card("intel", "0000:00:02.0", None, None),
        Card("nvidia", "0000:00:06.0", "nvidia", Link(16, 16)),
        Card("amd", "0000:00:07.0", None, None),
    )


def test_a_slot_with_fewer_lanes_is_not_narrow(tmp_path):
    """A card with 16 lanes in a slot with 4 uses all possible lanes."""
    _device(tmp_path, "0000:00:01.0", vendor="0x8086", **{"class": "0x060400"}, **_link(4, 4))
    _device(
        tmp_path,
        "0000:00:01.0/0000:01:00.0",
        vendor="0x10de",
        **{"class": "0x030000"},
        **_link(4, 16),
    )

    (card,) = find_cards(tmp_path)
    assert card.link == Link(4, 4)
    assert not card.link.is_narrow


def test_a_narrow_link_above_the_switch_of_an_amd_card(tmp_path):
    """The link from the card's switch to the slot is narrow, that of the GPU is not."""
    path = "0000:00:01.0"
    _device(tmp_path, path, vendor="0x1022", **{"class": "0x060400"}, **_link(8, 16))
    for name, link in (("0000:01:00.0", _link(8, 16)), ("0000:02:00.0", _link(16, 16))):
        path += f"/{name}"
        _device(tmp_path, path, vendor="0x1002", **{"class": "0x060400"}, **link)
    path += "/0000:03:00.0"
    caps = {
        "hwmon__hwmon3__power1_cap": "250000000",
        "hwmon__hwmon3__power1_cap_default": "303000000",
    }
    _device(tmp_path, path, vendor="0x1002", **{"class": "0x030000"}, **_link(16, 16), **caps)
    _drive(tmp_path, path, "amdgpu")

    (card,) = find_cards(tmp_path)
    assert card == Card("amd", "0000:03:00.0", "amdgpu", Link(8, 16), 250.0, 303.0)
    assert card.link.is_narrow


def _speed(gigatransfers: str) -> dict[str, str]:
    return {"max_link_speed": f"{gigatransfers} GT/s PCIe", "current_link_speed": "2.5 GT/s PCIe"}


def test_the_slowest_link_decides_the_speed(tmp_path):
    """An idle card slows its link down, so the highest speed of both ends counts."""
    slot, card = "0000:00:01.0", "0000:01:00.0"
    bridge = {"vendor": "0x8086", "class": "0x060400"}
    _device(tmp_path, slot, **bridge, **_link(16, 16), **_speed("8.0"))
    display = {"vendor": "0x10de", "class": "0x030000"}
    _device(tmp_path, f"{slot}/{card}", **display, **_link(16, 16), **_speed("16.0"))

    (found,) = find_cards(tmp_path)

    assert found.link == Link(16, 16, 12.5)


@pytest.mark.parametrize(
    ("lanes", "rate", "least", "most"),
    [
        (4, {"generation": 3}, 2.5, 3.9),
        (16, {"generation": 4}, 22, 31.5),
        (16, {"gigatransfers": 32.0}, 45, 63),
        (8, {"gigatransfers": 5.0}, 2.5, 4.0),
    ],
)
def test_copies_reach_most_of_a_link(lanes, rate, least, most):
    """Coding and protocol cost a part of the nominal rate."""
    assert least < pcie_gb_s(lanes, **rate) < most
    assert pcie_gb_s(0, **rate) is None
    assert pcie_gb_s(lanes) is None


def test_unknown_widths_are_not_a_link(tmp_path):
    """Virtual machines report 0 lanes, which is no link."""
    _device(tmp_path, "0000:00:06.0", vendor="0x10de", **{"class": "0x030200"}, **_link(0, 0))

    assert find_cards(tmp_path)[0].link is None


def test_a_system_without_a_bus_has_no_cards(tmp_path):
    """Without /sys there are no cards, and no error."""
    assert find_cards(tmp_path) == ()


def test_closed_device_files_are_found(tmp_path):
    """A device file without permission is returned; an open or missing one is not."""
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/renderD128").touch()
    # Not even root can open a link to nothing.
    (tmp_path / "dev/kfd").symlink_to("gone")

    assert closed_device_files(["/dev/dri/renderD*", "/dev/none"], tmp_path) == ()
    found = closed_device_files(["/dev/kf?", "/dev/dri/renderD*"], tmp_path)
    assert [os.path.relpath(path, tmp_path) for path in found] == ["dev/kfd"]
