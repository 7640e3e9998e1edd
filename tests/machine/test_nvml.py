"""NVIDIA GPUs, which most test machines lack."""

from __future__ import annotations

import pytest
from machine.nvidia_driver import ONE_CARD, nvidia_driver

from autofit.machine.memory_counter import UNKNOWN, MemoryCounter
from autofit.machine.nvml import (
    NvidiaMemory,
    find_nvidia_gpus,
    nvidia_capability,
    nvidia_states,
)
from autofit.machine.nvml import (
    nvidia_driver as driver_version,
)

NEEDED_FOR_MEMORY = {
    "nvmlInitWithFlags",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetMemoryInfo",
}


def test_gpus_and_states_agree():
    """Every GPU has a state; without a driver there are none."""
    gpus = find_nvidia_gpus()

    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    assert [state.pci_id for state in nvidia_states()] == [gpu.pci_id for gpu in gpus]


def test_a_gpu_that_does_not_exist_is_unknown():
    """A device without a GPU has an unknown counter and not 0."""
    assert NvidiaMemory({"CUDA99": 99}).read() == {"CUDA99": MemoryCounter(None, None)}


def test_gpus_that_exist_have_counters():
    """Every GPU has a counter, or an unknown one."""
    gpus = find_nvidia_gpus()
    counters = NvidiaMemory({f"CUDA{gpu.index}": gpu.index for gpu in gpus}).read()

    assert len(counters) == len(gpus)
    assert all(counter.used_mib is None or counter.used_mib >= 0 for counter in counters.values())


def test_the_values_of_a_driver_are_read():
    """Identity, memory and state of a card have the units of their names."""
    with nvidia_driver(ONE_CARD):
        (gpu,), (state,) = find_nvidia_gpus(), nvidia_states()
        counters, capability = NvidiaMemory({"CUDA0": 0}).read(), nvidia_capability(0)

    assert (gpu.pci_id, gpu.name, gpu.total_mib) == (
        "0000:01:00.0", "NVIDIA GeForce RTX 3060", 12288,
    )  # fmt: skip
    assert counters == {"CUDA0": MemoryCounter(1024, 11264)}
    assert capability == 8.6
    assert (state.power_w, state.power_cap_w, state.busy_percent) == (101.5, 120, 30)
    assert state.throttled_by == ("power limit",)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        *((name, 15) for name in ONE_CARD),
        ("nvmlDeviceGetName", ["\ud800"]),
        ("nvmlDeviceGetUUID", ["\ud800"]),
        ("nvmlDeviceGetPciInfo_v3", [{"busId": "\ud800"}]),
        ("nvmlSystemGetDriverVersion", ["\ud800"]),
        ("nvmlDeviceGetCount_v2", [2**32 - 1]),
        ("nvmlDeviceGetCudaComputeCapability", [8, -1]),
        ("nvmlDeviceGetMemoryInfo", [{"total": 5, "free": 2**60}]),
    ],
)
def test_a_driver_that_fails_in_one_thing_is_read_otherwise(name, answer):
    """A lost card, a name that is no text, or an impossible number costs only that fact."""
    with nvidia_driver({**ONE_CARD, name: answer}):
        gpus, states = find_nvidia_gpus(), nvidia_states()
        counter = NvidiaMemory({"CUDA0": 0}).read()["CUDA0"]
        version, _ = driver_version(), nvidia_capability(0)

    assert [gpu.name for gpu in gpus] == [state.name for state in states]
    assert version == ("NVIDIA 580.95.05" if name.startswith("nvmlDevice") else "")
    assert counter == (UNKNOWN if name in NEEDED_FOR_MEMORY else MemoryCounter(1024, 11264))
