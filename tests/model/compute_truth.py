"""Compute buffers that the runtime reported, with estimates for the same settings."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from model.layout_samples import devices

from autofit.model.sizes.inventory import ModelInventory, read_inventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.trial.candidate import Candidate

TABLE = Path(__file__).parents[1] / "data" / "memory" / "compute_cuda_b11434.csv"
_QWEN = {"layers": 3, "ctx": 262144, "header_only": True}
SPECS = {
    "moe-32k": SynthSpec(
        **_QWEN, experts=256, used=8, embd=2048, ff=512, heads=16, head_dim=256, vocab=32768
    ),
    "moe-152k": SynthSpec(
        **_QWEN, experts=256, used=8, embd=2048, ff=512, heads=16, head_dim=256, vocab=151936
    ),
    "dense-128k": SynthSpec(
        **_QWEN,
        experts=0,
        used=0,
        embd=4096,
        ff=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=128256,
    ),
    "moe-768": SynthSpec(
        **_QWEN,
        experts=128,
        used=8,
        embd=2048,
        ff=768,
        heads=32,
        kv_heads=4,
        head_dim=128,
        vocab=151936,
    ),
    "moe-2880": SynthSpec(
        **_QWEN,
        experts=32,
        used=4,
        embd=2880,
        ff=2880,
        heads=64,
        kv_heads=8,
        head_dim=64,
        vocab=200000,
        type="q8_0",
    ),
    "moe-512x10": SynthSpec(
        **_QWEN, experts=512, used=10, embd=2048, ff=512, heads=16, head_dim=256, vocab=151936
    ),
}


@dataclass(frozen=True)
class BufferComparison:
    """The compute buffer of one device, reported and estimated, in MiB."""

    model: str
    settings: str
    device: str
    server_mib: float
    computed_mib: float

    @property
    def error(self) -> float:
        """Relative error of the estimate."""
        return self.computed_mib / self.server_mib - 1

    @property
    def is_close(self) -> bool:
        """True if the error is at most 3 % or 8 MiB."""
        return abs(self.computed_mib - self.server_mib) <= max(8, 0.03 * self.server_mib)


def models(folder: Path) -> dict[str, ModelInventory]:
    """Return the inventories of the table's models, written as headers."""
    found = {}
    for name, spec in SPECS.items():
        write_model(spec, folder / f"{name}.gguf")
        found[name] = read_inventory(folder / f"{name}.gguf")
    return found


def compare_buffers(inventories: dict[str, ModelInventory]) -> Iterator[BufferComparison]:
    """Yield every row of the table with its estimate."""
    with TABLE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            split = row["tensor_split"].replace("/", ",")
            available = devices(80000, 80000)[: 2 if split else 1]
            settings = {
                "n_gpu_layers": int(row["n_gpu_layers"]),
                "n_cpu_moe": int(row["n_cpu_moe"]),
                "context": int(row["context"]),
                "batch": max(2048, int(row["ubatch"])),
                "ubatch": int(row["ubatch"]),
                "flash_attn": row["flash_attn"],
            } | ({"tensor_split": split} if split else {})
            estimate = estimate_memory(inventories[row["model"]], Candidate(settings), available)
            assert estimate.is_pipelined == (row["sched_copies"] == "4")
            name = row["device"]
            memory = estimate.host if name == "host" else estimate.device(name)
            yield BufferComparison(
                row["model"],
                " ".join(f"{key}={value}" for key, value in settings.items()),
                name,
                float(row["server_mib"]),
                memory.compute_mib,
            )
