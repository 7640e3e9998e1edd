"""Models and devices for the tests of layouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autofit.model.gguf.header import TensorInfo
from autofit.model.sizes.inventory import BlockInventory, ModelInventory, read_inventory
from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.units import MIB

# The model of the published measurements, and settings that go with it.
MEASURED = SynthSpec(
    layers=40,
    experts=256,
    used=8,
    embd=2048,
    ff=512,
    heads=16,
    kv_heads=2,
    head_dim=256,
    vocab=32768,
    ctx=262144,
    header_only=True,
)
SERVED = Candidate(
    {
        "context": 16384,
        "parallel": 1,
        "batch": 4096,
        "ubatch": 2048,
        "flash_attn": "on",
        "load_mode": "none",
    }
)


def synthesized(spec: SynthSpec, folder: Path) -> ModelInventory:
    """Return the inventory of a model, written as a header only."""
    path = folder / "model.gguf"
    write_model(spec, path)
    return read_inventory(path)


def devices(*usable_mib: float, backend: str = "CUDA") -> tuple[Device, ...]:
    """Return devices of one backend with the given memory."""
    return tuple(
        Device(f"{backend}{index}", f"10.0.0.{index}:50052", mib, mib)
        for index, mib in enumerate(usable_mib)
    )


def handmade(
    expert_mib: list[float],
    *,
    rest_mib: float = 10.0,
    output_mib: float = 20.0,
    nextn: int = 0,
    dense_mib: float = 0.0,
    n_embd: int = 256,
) -> ModelInventory:
    """Return a model with the given MiB of experts in each layer; 0 makes a layer dense."""
    blocks = tuple(
        BlockInventory(
            index=index,
            attention="full",
            n_head_kv=2,
            head_k=64,
            head_v=64,
            attention_bytes=int(rest_mib * MIB),
            dense_ffn_bytes=int(dense_mib * MIB) if not mib else 0,
            expert_bytes=int(mib * MIB) // 3 * 3,
            expert_up_gate_bytes=int(mib * MIB) // 3 * 2,
            expert_down_bytes=int(mib * MIB) // 3,
            expert_max_bytes=int(mib * MIB) // 3,
            expert_tensors=tuple(
                f"blk.{index}.ffn_{part}_exps.weight" for part in ("gate", "up", "down")
            )
            if mib
            else (),
            is_nextn=index >= len(expert_mib) - nextn,
        )
        for index, mib in enumerate(expert_mib)
    )
    is_moe = any(expert_mib)
    return ModelInventory(
        architecture="qwen3moe" if is_moe else "qwen3",
        name="handmade",
        path=Path("handmade.gguf"),
        files=(Path("handmade.gguf"),),
        blocks=blocks,
        embedding_bytes=int(output_mib * MIB),
        output_bytes=int(output_mib * MIB),
        is_output_tied=False,
        n_vocab=1000,
        n_embd=n_embd,
        n_head=4,
        n_ff=512,
        n_ff_exp=128,
        n_expert=16 if is_moe else 0,
        n_expert_used=2 if is_moe else 0,
        context_train=32768,
        total_bytes=1,
        tensors=tuple(tensor for block in blocks for tensor in _tensors(block)),
    )


def _tensors(block: BlockInventory) -> Iterator[TensorInfo]:
    """Yield a tensor for each part of a block that can move."""
    prefix = f"blk.{block.index}"
    for name, nbytes in (
        ("attn_norm", block.device_bytes - block.dense_ffn_bytes),
        ("ffn_gate", block.dense_ffn_bytes),
        ("ffn_gate_exps", block.expert_up_gate_bytes),
        ("ffn_down_exps", block.expert_down_bytes),
    ):
        if nbytes:
            yield TensorInfo(f"{prefix}.{name}.weight", (), 0, 0, nbytes)
