"""NVIDIA GPUs, which most test machines lack."""

from __future__ import annotations

from autofit.machine.memory_counter import MemoryCounter
from autofit.machine.nvml import NvidiaMemory, find_nvidia_gpus, nvidia_states


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
