"""Which physical GPU a runtime's device is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.machine.gpu import Gpu, normal_pci_id
from autofit.machine.gpu_pairing import pair
from autofit.trial.device import Device

SMALL = "NVIDIA GeForce RTX 3060"
LARGE = "NVIDIA GeForce RTX 4090"


def nvidia(*names: str) -> list[Gpu]:
    """Cards on the bus, in this order."""
    return [
        Gpu("nvidia", i, f"0000:{i + 1:02x}:00.0", name, 12288.0, f"GPU-{i}aa")
        for i, name in enumerate(names)
    ]


def cuda(*names: str) -> list[Device]:
    """Devices as CUDA counts them."""
    return [Device(f"CUDA{i}", name, 12000, 11000) for i, name in enumerate(names)]


def paired(devices: Sequence[Device], gpus: Sequence[Gpu], **env: str) -> dict[str, int]:
    """The index of each device's card."""
    return {name: gpu.index for name, gpu in pair(devices, gpus, env=env).items()}


def test_equal_cards_are_in_order():
    """Among equal cards CUDA counts as the bus does."""
    assert paired(cuda(SMALL, SMALL), nvidia(SMALL, SMALL)) == {"CUDA0": 0, "CUDA1": 1}


def test_fastest_first_is_seen_by_name():
    """CUDA puts the fastest card first, wherever it sits."""
    assert paired(cuda(LARGE, SMALL), nvidia(SMALL, LARGE)) == {"CUDA0": 1, "CUDA1": 0}
    assert paired(cuda(LARGE, SMALL, SMALL), nvidia(SMALL, LARGE, SMALL)) == {
        "CUDA0": 1,
        "CUDA1": 0,
        "CUDA2": 2,
    }


def test_visible_devices_are_counted_anew():
    """CUDA_VISIBLE_DEVICES by number or UUID chooses and reorders."""
    cards = nvidia(SMALL, SMALL, SMALL)

    assert paired(cuda(SMALL), cards, CUDA_VISIBLE_DEVICES="2") == {"CUDA0": 2}
    assert paired(cuda(SMALL, SMALL), cards, CUDA_VISIBLE_DEVICES="2,0") == {
        "CUDA0": 2,
        "CUDA1": 0,
    }
    assert paired(cuda(SMALL), cards, CUDA_VISIBLE_DEVICES="GPU-1") == {"CUDA0": 1}
    assert paired(cuda(SMALL), cards, CUDA_VISIBLE_DEVICES="GPU-") == {}
    assert paired(cuda(SMALL), cards, CUDA_VISIBLE_DEVICES="MIG-1") == {}
    assert paired(cuda(SMALL), cards, CUDA_VISIBLE_DEVICES="7") == {}


def test_order_of_the_bus_can_be_asked_for():
    """With CUDA_DEVICE_ORDER=PCI_BUS_ID numbers are places on the bus."""
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}

    assert paired(cuda(LARGE), nvidia(SMALL, LARGE, SMALL), **env) == {"CUDA0": 1}


def test_doubt_is_no_pairing():
    """A number among unequal cards, some of them equal, may mean one of several."""
    cards = nvidia(SMALL, LARGE, SMALL)

    assert paired(cuda(SMALL), cards, CUDA_VISIBLE_DEVICES="1") == {}
    assert paired(cuda(LARGE), cards, CUDA_VISIBLE_DEVICES="0") == {"CUDA0": 1}


def test_address_settles_it():
    """What the runtime's log told of an address wins, in whatever form."""
    cards = nvidia(SMALL, LARGE, SMALL)

    found = pair(cuda(SMALL), cards, env={}, pci_ids={"CUDA0": "00000000:03:00.0"})
    nowhere = pair(cuda(SMALL), cards, env={}, pci_ids={"CUDA0": "0000:99:00.0"})

    assert found["CUDA0"].index == 2
    assert nowhere == {}


def test_address_tells_equal_vulkan_devices_apart():
    """Where the runtime sees only the second of two equal cards, its address says so."""
    device = Device("Vulkan0", SMALL, 12288, 12000)
    cards = nvidia(SMALL, SMALL)

    assert pair([device], cards, env={"GGML_VK_VISIBLE_DEVICES": "1"}) == {}
    assert pair([device], cards, env={}, pci_ids={"Vulkan0": "0000:02:00.0"}) == {
        "Vulkan0": cards[1]
    }


def test_a_slice_of_a_card_has_no_counter_of_its_own():
    """A MIG device has the address of its card, whose counter tells of all slices."""
    device = Device("CUDA0", f"{SMALL} MIG 3g.6gb", 6000, 5900)

    assert pair([device], nvidia(SMALL), env={}, pci_ids={"CUDA0": "0000:01:00.0"}) == {}


def test_rocm_variables():
    """ROCR_VISIBLE_DEVICES chooses first, then HIP_VISIBLE_DEVICES among what is left."""
    cards = [Gpu("amd", i, f"0000:0{i}:00.0") for i in range(3)]
    order = [card.pci_id for card in reversed(cards)]
    devices = [Device("ROCm0", "AMD", 1, 1), Device("ROCm1", "AMD", 1, 1)]

    def found(**env: str) -> dict[str, int]:
        pairs = pair(devices, cards, env=env, rocm_order=order)
        return {name: gpu.index for name, gpu in pairs.items()}

    assert found() == {"ROCm0": 2, "ROCm1": 1}
    assert found(HIP_VISIBLE_DEVICES="1") == {"ROCm0": 1}
    assert found(ROCR_VISIBLE_DEVICES="2,0", HIP_VISIBLE_DEVICES="1") == {"ROCm0": 2}
    assert found(ROCR_VISIBLE_DEVICES="GPU-1") == {}


def test_vulkan_device_must_be_the_only_one():
    """Without an address a device is paired by its name only where nothing else fits."""
    device = Device("Vulkan0", LARGE, 24000, 24000)
    twin = Device("Vulkan1", LARGE, 24000, 24000)

    assert paired([device], nvidia(LARGE, SMALL)) == {"Vulkan0": 0}
    assert paired([device], nvidia(LARGE, LARGE)) == {}
    assert paired([device, twin], nvidia(LARGE)) == {}


def test_amd_card_is_known_by_vendor_and_size():
    """A card without a name is told from its like by its memory."""
    cards = [
        Gpu("amd", 0, "0000:03:00.0", total_mib=16368.0),
        Gpu("amd", 1, "0000:0f:00.0", total_mib=512.0),
    ]
    device = Device("Vulkan0", "AMD Radeon RX 9070 XT (RADV GFX1201)", 16304, 16000)
    other = Device("Vulkan1", "llvmpipe (LLVM 19)", 16304, 16000)

    assert paired([device, other], cards) == {"Vulkan0": 0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("1:0.0", "0000:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("no address", "no address"),
    ],
)
def test_addresses_have_one_form(text: str, expected: str):
    """However an address is written, it compares equal."""
    assert normal_pci_id(text) == expected


@given(
    st.lists(st.sampled_from([SMALL, LARGE, "NVIDIA H200"]), min_size=1, max_size=4),
    st.text(alphabet="0123,-GPUa", max_size=8),
    st.sampled_from(["", "PCI_BUS_ID"]),
)
def test_two_devices_never_share_a_card_unless_told_so(names: list[str], visible: str, order: str):
    """Whatever the variables say, nothing breaks, and no card is two devices by accident."""
    env = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    entries = [entry for entry in visible.split(",") if entry]

    found = paired(cuda(*names), nvidia(*names), **env)

    if len(set(entries)) == len(entries) and all(entry.isdigit() for entry in entries):
        assert len(set(found.values())) == len(found)
