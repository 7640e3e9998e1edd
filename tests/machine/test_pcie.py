"""Cards on the PCI bus, their drivers and links, from a copy of what Linux shows."""

from __future__ import annotations

from pathlib import Path

from autofit.machine.pcie import Card, Link, cards

DEVICES = "sys/devices/pci0000:00"


def _device(root: Path, path: str, **files: str) -> None:
    """A PCI device with its files, below `sys/devices/pci0000:00`, listed on the bus."""
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


def test_cards_are_told_from_other_devices(tmp_path):
    """Display controllers and accelerators count, whether driven or not; sound does not."""
    _device(tmp_path, "0000:00:02.0", vendor="0x8086", **{"class": "0x030000"})
    _device(tmp_path, "0000:00:06.0", vendor="0x10de", **{"class": "0x030200"}, **_link(16, 16))
    _device(tmp_path, "0000:00:07.0", vendor="0x1002", **{"class": "0x120000"})
    _device(tmp_path, "0000:00:08.0", vendor="0x10de", **{"class": "0x040300"})
    _device(tmp_path, "0000:00:09.0", vendor="0x1234", **{"class": "0x030000"})
    _drive(tmp_path, "0000:00:06.0", "nvidia")

    assert cards(tmp_path) == (
        Card("intel", "0000:00:02.0", None, None),
        Card("nvidia", "0000:00:06.0", "nvidia", Link(16, 16)),
        Card("amd", "0000:00:07.0", None, None),
    )


def test_slot_with_fewer_lanes_is_not_narrow(tmp_path):
    """A card of 16 lanes in a slot of 4 runs on all that there are: 4 are possible."""
    _device(tmp_path, "0000:00:01.0", vendor="0x8086", **{"class": "0x060400"}, **_link(4, 4))
    _device(
        tmp_path,
        "0000:00:01.0/0000:01:00.0",
        vendor="0x10de",
        **{"class": "0x030000"},
        **_link(4, 16),
    )

    (card,) = cards(tmp_path)
    assert card.link == Link(4, 4)
    assert not card.link.is_narrow


def test_narrow_link_is_seen_behind_the_switch_of_an_amd_card(tmp_path):
    """The GPU's own link is whole; the one from the card's switch to the slot is not."""
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

    (card,) = cards(tmp_path)
    assert card == Card("amd", "0000:03:00.0", "amdgpu", Link(8, 16), 250.0, 303.0)
    assert card.link.is_narrow


def test_unknown_widths_are_no_link(tmp_path):
    """Virtual machines write 0 or 255 lanes, or nothing: then nothing is claimed."""
    _device(tmp_path, "0000:00:06.0", vendor="0x10de", **{"class": "0x030200"}, **_link(0, 0))

    assert cards(tmp_path)[0].link is None


def test_system_without_a_bus_has_no_cards(tmp_path):
    """Without /sys there are no cards, and no error."""
    assert cards(tmp_path) == ()
