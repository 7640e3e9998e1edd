"""Memory that the runtime does not report.

On devices these are the driver's context, scratch pools, page tables, prefetch slots and expert
caches. On the host they are repacked weights.

Contexts and pools were measured with CUDA b11434 on an H200, by NVML before and after the first
long prompt. A context alone took 527 MiB, and 598 MiB with a model loaded. The pool then took 12
to 32 MiB for dense models and 116 to 172 MiB for mixtures of experts; it grows with the ubatch.
With Vulkan b10434 on the same card, a context with a model loaded took 66 MiB. For 256 experts of
width 2,048 the pool took 340 MiB at ubatch 512, 1,050 MiB at 2,048 and 2,100 MiB at 4,096. On
both, weights in pinned host memory took 1/512 of their size on every card. For other backends the
numbers are guesses, which launches calibrate (`autofit.memory.calibration`).

Prefetch slots and expert caches follow llama.cpp #28414, #21067 and #29887, and the forks before
them. Prefetch slots are allocated with the first large batch, each as large as the largest
expert tensor in system RAM. Prefetch by layer (`prefetch_weights`) allocates the experts of one
layer. A cache is never larger than the experts that it can contain.
"""

from __future__ import annotations

from autofit.model.gguf.block_type import find_block_type
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.tensor_placement import HOST, Placement, padded_bytes
from autofit.trial.candidate import Candidate, Params, ParamValue
from autofit.trial.device import backend_of
from autofit.trial.parameter_groups import EXPERT_MEMORY_PARAMS
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
# With the tensor cores of NVIDIA cards, Vulkan's matrix multiplication of experts pads the
# activations of each token to this many rows of 16 bits. Its memory grew by 512 KiB per token of
# a ubatch, which are 128 rows x 2,048 x 2 bytes; at ubatch 4,096 it failed to allocate 2,048 MiB.
_VULKAN_PADDED_ROWS = 128
_VULKAN_WORKSPACE_MIB = 60.0
_LISTED_WITH_CONTEXT = frozenset({"CUDA", "ROCm", "MUSA"})
# All operations in turn share one pool of virtual memory, so only the largest counts: 805 MiB at
# context 65,536 and 803 at 16,384, where the f16 copy of a layer's cache takes 128 and 32 MiB.
# Elsewhere a pool has a buffer of each size.
_ONE_POOL = frozenset({"CUDA"})
# Its attention reads a quantized cache directly: q8_0 took no more memory than f16.
_READS_QUANTIZED_KV = frozenset({"Vulkan"})
# A card reaches host memory through an entry of 8 bytes for each page of 4 KiB: 18 layers of 432
# MiB took 15 to 16 MiB more than mapped from the file, and 25 layers 22.
_PINNED_BYTES_PER_ENTRY_BYTE = 512
_PINS_HOST_MEMORY = frozenset({"CUDA", "ROCm", "MUSA", "Vulkan"})
# llama.cpp repacks matrices of these types for its CPU kernels; those of q8_0, q6_k and f16 stay
# as they are (`ggml-cpu/repack.cpp`, seen with b11434 on x86 with AVX2).
_REPACKED_TYPES = {
    block_type.type_id
    for name in ("q4_0", "q4_k", "iq4_nl")
    if (block_type := find_block_type(name))
}
_REPACKED_ROWS = 8  # repacked together
_OFF = ("off", "false", "0")


def context_mib(device_name: str) -> float:
    """Return the MiB of the driver's context with its libraries."""
    return _CONTEXT_MIB.get(backend_of(device_name), _UNKNOWN_CONTEXT_MIB)


def opens_context_to_list(device_name: str) -> bool:
    """Return whether a runtime opens a context to list the free memory of a device.

    CUDA answered 11,671 MiB when NVML counted 12,195; Vulkan on the same card 12,178.
    """
    return backend_of(device_name) in _LISTED_WITH_CONTEXT


def pool_mib(
    device_name: str,
    description: str = "",
    *,
    rows: int,
    n_embd: int,
    has_experts: bool,
    widened_elements: int = 0,
) -> float:
    """Return the scratch memory that a device allocates at the first long prompt.

    Args:
        device_name: as the runtime names it.
        description: the runtime's name of the card.
        rows: tokens computed at once.
        n_embd: width of the hidden state.
        has_experts: the device multiplies matrices of experts.
        widened_elements: elements of a layer's quantized cache, which attention over long
            prompts converts to f16.
    """
    backend = backend_of(device_name)
    if backend in _WITHOUT_POOL:
        return 0.0
    widened_mib = 0.0 if backend in _READS_QUANTIZED_KV else widened_elements * 2 / MIB
    hidden_mib = rows * n_embd * 4 / MIB
    words = description.lower()
    # NVIDIA cards that are called GTX have no tensor cores.
    pads_experts = backend == "Vulkan" and "nvidia" in words and "gtx" not in words
    if has_experts and pads_experts:
        scratch_mib = _VULKAN_WORKSPACE_MIB + _VULKAN_PADDED_ROWS * rows * n_embd * 2 / MIB
    elif has_experts:
        scratch_mib = _EXPERT_WORKSPACE_MIB + 2 * hidden_mib
    else:
        scratch_mib = _DENSE_WORKSPACE_MIB + hidden_mib
    return max(scratch_mib, widened_mib) if backend in _ONE_POOL else scratch_mib + widened_mib


def page_table_mib(device_name: str, pinned_mib: float) -> float:
    """Return the memory of the page table that maps weights in pinned host memory."""
    has_table = backend_of(device_name) in _PINS_HOST_MEMORY
    return pinned_mib / _PINNED_BYTES_PER_ENTRY_BYTE if has_table else 0.0


def can_stage(device_name: str) -> bool:
    """Return whether a device computes large batches with weights from host memory."""
    return backend_of(device_name) not in ("RPC", "CPU")


def select_expert_settings(params: Params) -> dict[str, ParamValue]:
    """Select the parameters that turn on prefetch or a cache of experts."""
    candidate = Candidate(params)
    return {name: params[name] for name in EXPERT_MEMORY_PARAMS if candidate.get_amount(name)}


def prefetch_mib(inventory: ModelInventory, candidate: Candidate, placement: Placement) -> float:
    """Return the memory of prefetch on the staging device after its first large batch."""
    blocks = [inventory.blocks[index] for index in placement.host_expert_blocks]
    slot = max((block.expert_max_bytes for block in blocks), default=0) / MIB
    slots = candidate.get_amount("prefetch_slots") * slot
    layer = max((block.expert_bytes for block in blocks), default=0) / MIB
    return slots + (layer if candidate.get_amount("prefetch_weights") else 0.0)


def expert_cache_mib(
    inventory: ModelInventory, candidate: Candidate, placement: Placement
) -> float:
    """Return the memory of a cache of experts, limited by MiB or by slots in each layer.

    A layer is cached only if all its experts are in system RAM and the rest is on a device.
    """
    cached = [
        inventory.blocks[block].expert_bytes
        for block, places in enumerate(placement.experts)
        if set(places) == {HOST} and placement.units[block] != HOST
    ]
    slots = candidate.get_amount("moe_cache_slots")
    slots_mib = slots * sum(cached) / max(1, inventory.n_expert) / MIB
    return min(candidate.get_amount("moe_cache_mib") + slots_mib, sum(cached) / MIB)


def repacked_bytes(candidate: Candidate, placement: Placement) -> int:
    """Return the bytes of repacked host weights, which have a buffer of their own.

    If a device offers pinned host memory, llama.cpp prefers that and repacks nothing.
    """
    if candidate.get_str("repack", "on").lower() in _OFF:
        return 0
    if any(can_stage(device.name) for device in placement.devices):
        return 0
    return sum(
        padded_bytes(tensor)
        for tensor in placement.host_tensors
        if tensor.type_id in _REPACKED_TYPES
        and len(tensor.shape) > 1
        and tensor.shape[1] % _REPACKED_ROWS == 0
    )
