"""Host weights that llama.cpp rewrites for its CPU kernels, into a buffer of their own.

Seen with b11434 on x86 with AVX2: matrices of these types go to `CPU_REPACK`, those of q8_0,
q6_k and f16 stay as they are (`ggml-cpu/repack.cpp`).
"""

from __future__ import annotations

from autofit.model.gguf.block_type import block_type_named
from autofit.model.placement.placed_layers import Placement, padded_bytes
from autofit.model.sizes.run_time_memory import can_stage
from autofit.trial.candidate import Candidate

_REPACKED = {
    block_type.type_id
    for name in ("q4_0", "q4_k", "iq4_nl")
    if (block_type := block_type_named(name))
}
_ROWS_TOGETHER = 8
_OFF = ("off", "false", "0")


def repacked_bytes(candidate: Candidate, placement: Placement) -> int:
    """Bytes of repacked weights; they are neither mapped nor in the host's row.

    Where a device offers page-locked host memory, that is preferred and nothing is repacked.
    """
    if candidate.get_str("repack", "on").lower() in _OFF:
        return 0
    if any(can_stage(device.name) for device in placement.devices):
        return 0
    return sum(
        padded_bytes(tensor, None)
        for tensor in placement.host_tensors
        if tensor.type_id in _REPACKED
        and len(tensor.shape) > 1
        and tensor.shape[1] % _ROWS_TOGETHER == 0
    )
