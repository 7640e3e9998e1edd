"""NVIDIA GPUs, which most test machines lack."""

from __future__ import annotations

from autofit.machine.memory_watcher import Counter
from autofit.machine.nvml import NvmlSource, nvidia_gpus, nvidia_states


def test_gpus_and_states_agree():
    """Every GPU found has a state, and none is made up where there is no driver."""
    gpus = nvidia_gpus()

    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    assert [state.pci_id for state in nvidia_states()] == [gpu.pci_id for gpu in gpus]


def test_gpu_that_does_not_exist_is_unknown():
    """A device without a GPU behind it has no counter, never 0."""
    assert NvmlSource({"CUDA99": 99}).read() == {"CUDA99": Counter(None, None)}


def test_gpus_that_exist_have_counters():
    """Every GPU found tells its memory or says that it cannot."""
    gpus = nvidia_gpus()
    counters = NvmlSource({f"CUDA{gpu.index}": gpu.index for gpu in gpus}).read()

    assert len(counters) == len(gpus)
    assert all(counter.used_mib is None or counter.used_mib >= 0 for counter in counters.values())
