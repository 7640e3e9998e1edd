"""What a process takes on a device beside the buffers that the runtime reports.

Measured with CUDA b11434 on an H200, by NVML before and after the first long prompt: 527 MiB
for a context alone, 598 with a model loaded, then 12 to 32 more for dense models and 116 to
172 for mixtures of experts, growing with the ubatch. With Vulkan b10434 on the same card: 66
MiB for a context with a model loaded, then 340 more at ubatch 512, 1,050 at 2,048 and 2,100 at
4,096 for 256 experts of width 2,048. On both, weights in pinned host memory took 1/512 of their
size on every card. For other backends these are guesses that a launch corrects
(`autofit.memory.correction`).
"""

from __future__ import annotations

import re

from autofit.units import MIB

# A context with its libraries, once a model is loaded.
_CONTEXT_MIB = {
    "CUDA": 600.0,
    "ROCm": 500.0,
    "MUSA": 600.0,
    "SYCL": 300.0,
    "Vulkan": 66.0,
    "MTL": 0.0,
    "Metal": 0.0,
    "RPC": 0.0,
    "CPU": 0.0,
}
_UNKNOWN_CONTEXT_MIB = 300.0
_WITHOUT_POOL = ("RPC", "CPU", "MTL", "Metal")
_EXPERT_WORKSPACE_MIB = 112.0
_DENSE_WORKSPACE_MIB = 4.0
# Vulkan's matrix multiplication of experts pads each token's activations to as many rows of 16
# bits where it uses the tensor cores of NVIDIA cards: 128 rows x 2,048 x 2 bytes are the 512 KiB
# for each token of a ubatch by which its memory grew, and 2,048 MiB at once what it failed to
# allocate at ubatch 4,096.
_VULKAN_PADDED_ROWS = 128
_VULKAN_WORKSPACE_MIB = 60.0
_LISTED_WITH_CONTEXT = frozenset({"CUDA", "ROCm", "MUSA"})
# One pool of virtual memory serves all operations in turn, so that only the largest counts: 805
# MiB at context 65,536 and 803 at 16,384, where a widened layer takes 128 and 32. Elsewhere a
# pool keeps buffers of each size.
_ONE_POOL = frozenset({"CUDA"})
# Its attention reads a quantized cache as it is: with q8_0 it took no more than with f16.
_WIDENS_NOTHING = frozenset({"Vulkan"})
# An entry of 8 bytes for each page of 4 KiB by which a card reaches host memory: 18 layers of
# 432 MiB in it took 15 to 16 MiB more than mapped from the file, and 25 layers 22.
_PINNED_BYTES_FOR_ONE = 512
_PINS_HOST_MEMORY = frozenset({"CUDA", "ROCm", "MUSA", "Vulkan"})


def backend_of(device_name: str) -> str:
    """The backend in a device's name: `CUDA0` is of CUDA."""
    return re.sub(r"\d+$", "", device_name)


def context_mib(device_name: str) -> float:
    """The driver's context with its libraries."""
    return _CONTEXT_MIB.get(backend_of(device_name), _UNKNOWN_CONTEXT_MIB)


def opens_context_to_list(device_name: str) -> bool:
    """Whether a runtime that lists the device's free memory holds a context on it then.

    CUDA answered 11,671 MiB where NVML counted 12,195; Vulkan on the same card 12,178.
    """
    return backend_of(device_name) in _LISTED_WITH_CONTEXT


def pads_experts(device_name: str, description: str) -> bool:
    """Whether a device pads the activations of experts in 16 bits, as tensor cores want them.

    Cards of NVIDIA that are called GTX have none.
    """
    words = description.lower()
    return backend_of(device_name) == "Vulkan" and "nvidia" in words and "gtx" not in words


def pool_mib(
    device_name: str,
    description: str = "",
    *,
    rows: int,
    n_embd: int,
    has_experts: bool,
    widened_elements: int = 0,
) -> float:
    """Scratch that grows at the first long prompt.

    Args:
        device_name: as the runtime names it.
        description: what the runtime calls the card.
        rows: tokens computed at once.
        n_embd: width of the hidden state.
        has_experts: whether matrices of experts are multiplied on the device.
        widened_elements: of a layer's quantized cache, of which attention over long prompts
            makes f16.
    """
    backend = backend_of(device_name)
    if backend in _WITHOUT_POOL:
        return 0.0
    widened_mib = 0.0 if backend in _WIDENS_NOTHING else widened_elements * 2 / MIB
    hidden_mib = rows * n_embd * 4 / MIB
    if has_experts and pads_experts(device_name, description):
        scratch_mib = _VULKAN_WORKSPACE_MIB + _VULKAN_PADDED_ROWS * rows * n_embd * 2 / MIB
    elif has_experts:
        scratch_mib = _EXPERT_WORKSPACE_MIB + 2 * hidden_mib
    else:
        scratch_mib = _DENSE_WORKSPACE_MIB + hidden_mib
    return max(scratch_mib, widened_mib) if backend in _ONE_POOL else scratch_mib + widened_mib


def page_table_mib(device_name: str, pinned_mib: float) -> float:
    """What a device takes to reach weights in pinned host memory."""
    return (
        pinned_mib / _PINNED_BYTES_FOR_ONE if backend_of(device_name) in _PINS_HOST_MEMORY else 0.0
    )


def can_stage(device_name: str) -> bool:
    """Whether a device computes large batches whose weights lie in host memory."""
    return backend_of(device_name) not in ("RPC", "CPU")
