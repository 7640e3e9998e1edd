"""The memory of synthesized models in the real llama-server, with estimates for the same settings.

The models have the widths of published ones, few layers, and a hole instead of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from real_llama_cpp import buffers_mib, server_log

from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.model.synth.random_model import SynthSpec
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device

_SMALL = {"layers": 4, "vocab": 4000, "ctx": 131072, "type": "q4_0", "header_only": True}
PUBLISHED_WIDTHS = {
    "qwen3moe": SynthSpec(
        **_SMALL, experts=8, used=8, embd=2048, ff=768, heads=32, kv_heads=4, head_dim=128
    ),
    "gpt-oss": SynthSpec(
        **_SMALL,
        arch="gpt-oss",
        experts=4,
        used=4,
        embd=2880,
        ff=2880,
        heads=64,
        kv_heads=8,
        head_dim=64,
    ),
    "deepseek2": SynthSpec(
        **_SMALL, arch="deepseek2", experts=6, used=6, embd=2048, ff=1408, heads=16, head_dim=128
    ),
    "glm4moe": SynthSpec(
        **_SMALL,
        arch="glm4moe",
        experts=8,
        used=8,
        embd=4096,
        ff=1408,
        heads=96,
        kv_heads=8,
        head_dim=128,
    ),
    "qwen3next": SynthSpec(
        **_SMALL,
        arch="qwen3next",
        experts=10,
        used=10,
        embd=2048,
        ff=512,
        heads=16,
        kv_heads=2,
        head_dim=256,
    ),
}


@dataclass(frozen=True)
class ServerRow:
    """One device: MiB of weights, cache and compute buffer, reported and estimated."""

    device: str
    reported: Sequence[float]
    estimated: Sequence[float]

    @property
    def errors(self) -> list[float]:
        """Estimated minus reported, in MiB."""
        return [e - r for e, r in zip(self.estimated, self.reported, strict=True)]


def compare_with_server(
    folder: Path,
    model: ModelInventory,
    log: Path,
    addresses: list[str],
    *,
    context: int,
    kv_type: str,
    hosted: int,
    ubatch: int = 512,
) -> Iterator[ServerRow]:
    """Start a server on remote devices, and yield a row for each of them."""
    first = model.units // 2
    split = f"{first},{model.units - first}" if len(addresses) > 1 else "1"
    words = ["--rpc", ",".join(addresses), "-fit", "off", "-ngl", "999", "-ts", split, "-fa", "on"]
    words += ["-c", str(context), "-np", "1", "-ub", str(ubatch), "-ctk", kv_type, "-ctv", kv_type]
    words += ["-ncmoe", str(hosted)] if hosted else []
    reported = buffers_mib(server_log(folder, model.path, log, *words), addresses)
    settings = {"context": context, "parallel": 1, "ubatch": ubatch, "tensor_split": split}
    settings |= {"cache_type_k": kv_type, "cache_type_v": kv_type}
    candidate = Candidate(settings | ({"n_cpu_moe": hosted} if hosted else {}))
    devices = [Device(f"RPC{i}", name, 1e6, 1e6) for i, name in enumerate(addresses)]
    estimate = estimate_memory(model, candidate, devices)
    for row in estimate.devices:
        yield ServerRow(
            row.name, reported[row.name], (row.weights_mib, row.kv_mib, row.compute_mib)
        )
    # The log counts the mapped part of the file, with the gaps between host tensors.
    host = estimate.host
    yield ServerRow("Host", [0.0, *reported["Host"][1:]], (0.0, host.kv_mib, host.compute_mib))
