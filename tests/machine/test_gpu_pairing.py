"""The physical GPU of a runtime's device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.machine.gpu import Gpu, normal_pci_id
from autofit.machine.gpu_pairing import pair_gpus
from autofit.trial.device import Device

SMALL = "NVIDIA GeForce RTX 3060"
LARGE = "NVIDIA GeForce RTX 4090"


def nvidia(*names: str) -> list[Gpu]:
    """Return cards in bus order."""
    return [
        Gpu("nvidia", i, f"0000:{i + 1:02x}:00.0", name, 12288.0, f"GPU-{i}aa")
        for i, name in enumerate(names)
    ]


def cuda(*names: str) -> list[Device]:
    """Return devices in CUDA's order."""
    return [Device(f"CUDA{i}", name, 12000, 11000) for i, name in enumerate(names)]


def paired(devices: Sequence[Device], gpus: Sequence[Gpu], **env: str) -> dict[str, int]:
    """Return the index of each device's card."""
    return {name: gpu.index for name, gpu in pair_gpus(devices, gpus, env=env).items()}


def test_equal_cards_are_in_bus_order():
    """CUDA counts equal cards in bus order."""
    assert paired(cuda(SMALL, SMALL), nvidia(SMALL, SMALL)) == {"CUDA0": 0, "CUDA1": 1}


def test_the_fastest_card_is_found_by_name():
    """CUDA counts the fastest card first, wherever it is on the bus."""
    assert paired(cuda(LARGE, SMALL), nvidia(SMALL, LARGE)) == {"CUDA0": 1, "CUDA1": 0}
    assert paired(cuda(LARGE, SMALL, SMALL), nvidia(SMALL, LARGE, SMALL)) == {
        "CUDA0": 1,
        "CUDA1": 0,
        "CUDA2": 2,
    }


def test_visible_devices_are_renumbered():
    """CUDA_VISIBLE_DEVICES selects and reorders by number or UUID."""
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


def test_cuda_can_count_in_bus_order():
    """With CUDA_DEVICE_ORDER=PCI_BUS_ID numbers are in bus order."""
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}

    assert paired(cuda(LARGE), nvidia(SMALL, LARGE, SMALL), **env) == {"CUDA0": 1}


def test_an_ambiguous_device_has_no_gpu():
    """A number can mean several cards if some are equal and others are not."""
    cards = nvidia(SMALL, LARGE, SMALL)

    assert paired(cuda(SMALL), cards, CUDA_VISIBLE_DEVICES="1") == {}
    assert paired(cuda(LARGE), cards, CUDA_VISIBLE_DEVICES="0") == {"CUDA0": 1}


def test_the_pci_address_decides():
    """An address from the runtime's log has precedence, in any notation."""
    cards = nvidia(SMALL, LARGE, SMALL)

    found = pair_gpus(cuda(SMALL), cards, env={}, pci_ids={"CUDA0": "00000000:03:00.0"})
    nowhere = pair_gpus(cuda(SMALL), cards, env={}, pci_ids={"CUDA0": "0000:99:00.0"})

    assert found["CUDA0"].index == 2
    assert nowhere == {}


def test_the_pci_address_of_an_equal_vulkan_device():
    """The address identifies the second of two equal cards if only that is visible."""
    device = Device("Vulkan0", SMALL, 12288, 12000)
    cards = nvidia(SMALL, SMALL)

    assert pair_gpus([device], cards, env={"GGML_VK_VISIBLE_DEVICES": "1"}) == {}
    assert pair_gpus([device], cards, env={}, pci_ids={"Vulkan0": "0000:02:00.0"}) == {
        "Vulkan0": cards[1]
    }


def test_a_slice_of_a_card_has_no_gpu():
    """A MIG device has the address of its card, but the counter is for all slices."""
    device = Device("CUDA0", f"{SMALL} MIG 3g.6gb", 6000, 5900)

    assert pair_gpus([device], nvidia(SMALL), env={}, pci_ids={"CUDA0": "0000:01:00.0"}) == {}


def test_rocm_variables():
    """ROCR_VISIBLE_DEVICES selects first, then HIP_VISIBLE_DEVICES among those."""
    cards = [Gpu("amd", i, f"0000:0{i}:00.0") for i in range(3)]
    order = [card.pci_id for card in reversed(cards)]
    devices = [Device("ROCm0", "AMD", 1, 1), Device("ROCm1", "AMD", 1, 1)]

    def found(**env: str) -> dict[str, int]:
        pairs = pair_gpus(devices, cards, env=env, rocm_order=order)
        return {name: gpu.index for name, gpu in pairs.items()}

    assert found() == {"ROCm0": 2, "ROCm1": 1}
    assert found(HIP_VISIBLE_DEVICES="1") == {"ROCm0": 1}
    assert found(ROCR_VISIBLE_DEVICES="2,0", HIP_VISIBLE_DEVICES="1") == {"ROCm0": 2}
    assert found(ROCR_VISIBLE_DEVICES="GPU-1") == {}


def test_a_vulkan_device_must_match_only_one_card():
    """Without an address a device is paired by name only if nothing else matches."""
    device = Device("Vulkan0", LARGE, 24000, 24000)
    twin = Device("Vulkan1", LARGE, 24000, 24000)

    assert paired([device], nvidia(LARGE, SMALL)) == {"Vulkan0": 0}
    assert paired([device], nvidia(LARGE, LARGE)) == {}
    assert paired([device, twin], nvidia(LARGE)) == {}


def test_an_amd_card_is_found_by_vendor_and_size():
    """A card without a name is identified by its memory."""
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
def test_pci_addresses_are_normalized(text: str, expected: str):
    """All notations of an address give the same text."""
    assert normal_pci_id(text) == expected


@given(
    st.lists(st.sampled_from([SMALL, LARGE, "NVIDIA H200"]), min_size=1, max_size=4),
    st.text(alphabet="0123,-GPUa", max_size=8),
    st.sampled_from(["", "PCI_BUS_ID"]),
)
def test_two_devices_never_share_a_card_by_accident(names: list[str], visible: str, order: str):
    """For any variables, two devices share a card only if an entry occurs twice."""
    env = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    entries = [entry for entry in visible.split(",") if entry]

    found = paired(cuda(*names), nvidia(*names), **env)

    if len(set(entries)) == len(entries) and all(entry.isdigit() for entry in entries):
        assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("visible", ["²", "٣", "9" * 5000, "-1", "0x1", "1.5", " ", "GPU-²"])
@pytest.mark.parametrize("device", ["CUDA0", "ROCm0"])
def test_a_variable_that_is_no_list_of_cards_selects_none(visible: str, device: str):
    """Digits of other scripts and of thousands of places are no numbers of cards."""
    env = {"CUDA_VISIBLE_DEVICES": visible, "HIP_VISIBLE_DEVICES": visible}
    cards = [*nvidia(SMALL), Gpu("amd", 0, "0000:07:00.0", "", 8192.0)]

    assert pair_gpus([Device(device, SMALL, 12000, 11000)], cards, env=env,
                     rocm_order=["0000:07:00.0"]) == {}  # fmt: skip
